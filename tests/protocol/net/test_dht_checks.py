"""What checking a record costs its source, and who is reported for passing on what is valid nowhere."""

import asyncio
from collections.abc import Callable

import msgpack
import pytest

from protocol.clock import unix_time
from protocol.digest_cache import DigestCache
from protocol.errors import FormatError
from protocol.identity import PeerId, RunId
from protocol.limits import DHT_STRANGER_SAVED, SIGNATURES_OF_A_MESSAGE
from protocol.net.dht_checks import Checks, DhtEntry
from protocol.trust import signed
from protocol.trust.keys import Identity
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.records import PeerRecord, Register, expiration, sign_record
from tests.reference.admitted import identity
from tests.reference.small_manifest import small_manifest

RUN = RunId("ab" * 32)
OPERATOR, GATEWAY = identity("operator"), identity("gateway")
REVOKED: set[PeerId] = set()
AUTHORITY = Authority(RUN, OPERATOR.peer_id, REVOKED.__contains__)
REGISTER = Register(AUTHORITY, small_manifest())
BY_OPERATOR = issue(OPERATOR, RUN, Card(GATEWAY.peer_id, "gateway", 0, 0))


def entry(who: Identity, sequence: int = 0, by_gateway: bool = False, stage: int = 1) -> DhtEntry:
    """A record of now. One that names another stage than 1 is not its card's."""
    card = Card(who.peer_id, "volunteer", 1, 7)
    given = issue(GATEWAY, RUN, card, BY_OPERATOR) if by_gateway else issue(OPERATOR, RUN, card)
    now = int(unix_time() * 1000) + sequence
    record = PeerRecord(peer_id=who.peer_id, address="h:1", role="volunteer", stage=stage, slot=7, sequence=now)
    value = msgpack.packb(sign_record(Signer(who, AUTHORITY, given), record))
    return DhtEntry(REGISTER.key(who.peer_id), msgpack.packb(who.peer_id), value, expiration(record))


def stranger_left(checks: Checks, source: str) -> float:
    return checks.costs.strangers.bucket(source).left(checks.costs.clock())


def play(scene: Callable[[Checks, list[str]], object]) -> None:
    async def run() -> None:
        reported: list[str] = []
        checks = Checks(REGISTER, lambda source, error: reported.append(source))
        checks.costs.clock = lambda: 0.0
        try:
            await scene(checks, reported)  # type: ignore[misc]
        finally:
            checks.stop()

    REVOKED.clear()
    asyncio.run(run())


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed, "VERIFIED", DigestCache(signed.CHECKED_MESSAGES_KEPT))


def test_a_record_costs_its_source_as_many_checks_as_it_takes():
    async def scene(checks: Checks, reported: list[str]) -> None:
        left = DHT_STRANGER_SAVED
        for number, (who, by_gateway, cost) in enumerate(
            [("a", True, 3), ("a", True, 1), ("b", True, 2), ("c", False, 2), ("c", False, 1)]
        ):
            (valid,) = await checks.valid([entry(identity(who), number, by_gateway)], "stranger")
            left -= cost
            assert stranger_left(checks, "stranger") == pytest.approx(left)
            assert await checks.valid([valid], "stranger") == [valid]  # known by now
            assert stranger_left(checks, "stranger") == pytest.approx(left)
        assert reported == []

    play(scene)


def test_a_record_that_is_valid_nowhere_costs_what_the_dearest_does():
    async def scene(checks: Checks, reported: list[str]) -> None:
        bad = entry(identity("a"))._replace(value=msgpack.packb(b"no record"))
        assert await checks.valid([bad], "stranger") == []
        assert stranger_left(checks, "stranger") == pytest.approx(DHT_STRANGER_SAVED - SIGNATURES_OF_A_MESSAGE)

    play(scene)


def test_who_is_of_the_run_and_passes_on_what_is_valid_nowhere_is_reported_and_a_stranger_is_not():
    member = identity("member")

    async def scene(checks: Checks, reported: list[str]) -> None:
        bad = {
            "another stage than its card's": entry(identity("a"), stage=0),
            "another end": entry(identity("b"))._replace(expiration=unix_time()),
            "another's subkey": entry(identity("c"))._replace(subkey=msgpack.packb(member.peer_id)),
            "no record": entry(identity("d"))._replace(value=msgpack.packb(b"no record")),
            "nobody's": entry(identity("e"))._replace(subkey=msgpack.packb(7)),
        }
        for each in bad.values():
            assert await checks.valid([each], member.peer_id) == []
        assert reported == []
        assert await checks.valid([entry(member)], "anybody")
        for number, each in enumerate(bad.values(), 1):
            assert await checks.valid([each, entry(member, number)], member.peer_id) != []
            assert reported == [member.peer_id] * number

    play(scene)


def test_who_has_not_heard_yet_that_a_gateway_was_taken_out_is_not_reported():
    member = identity("member")

    async def scene(checks: Checks, reported: list[str]) -> None:
        assert await checks.valid([entry(member)], "anybody")
        REVOKED.add(GATEWAY.peer_id)
        assert await checks.valid([entry(identity("a"), by_gateway=True)], member.peer_id) == []
        future = entry(identity("b"), sequence=10**9)
        assert await checks.valid([future], member.peer_id) == []  # its clock, or ours
        assert reported == []

    play(scene)


def test_an_error_names_what_was_wrong():
    heard: list[FormatError] = []

    async def scene(checks: Checks, reported: list[str]) -> None:
        checks.offence = lambda source, error: heard.append(error)
        checks.members["member"] = unix_time() + 60
        await checks.valid([entry(identity("a"), stage=0)], "member")
        assert ["names another place than its card" in str(error) for error in heard] == [True]

    play(scene)
