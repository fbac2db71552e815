"""The outer state of several peers over real sockets: equal sets, equal bits, whatever comes late, wrong or twice."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.network import intake
from peer.network.contacts import Contacts
from peer.network.intake import nothing_is_valid
from peer.store.checkpoint import candidates, leave_stage, write_checkpoint
from peer.store.served import BLOCK_BYTES
from peer.swarm.rounds import round_policy
from peer.swarm.rounds.catch_up import agree, catch_up
from peer.swarm.rounds.parts import rounds_kept
from peer.swarm.rounds.round_end import finish_round
from peer.swarm.rounds.round_view import why_end_steps
from protocol.codec.bitstream import Int32Array
from protocol.codec.chunks import chunk_grid
from protocol.codec.contribution import contribution_digest, decode
from protocol.errors import FormatError, RefusedError, ResourceError
from protocol.events.activity import Progress, Refused, Resumed
from protocol.events.decisions import CaughtUp, Resynchronised
from protocol.events.waiting import Waiting
from protocol.identity import EMBEDDING, ContributionName, Part, PeerId, stage_part
from protocol.layout import part_layout
from protocol.manifest import Manifest
from protocol.net.channels import handshake
from protocol.outer.history import Claim
from protocol.outer.ledger import Revocation
from protocol.outer.phases import RunPhase
from protocol.schemas import reconciliation_pb2 as pb
from protocol.schemas import reconciliation_pb2_grpc
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Card, Signer, issue
from protocol.trust.proofs import sign_contribution, sign_revocation
from tests.reference.loopback_peers import RUN, LoopbackPeer, Village, village
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(outer={"grace": 2, "liars": 0, "rounds": 50, "chunk_side": 4, "top_k": 2, "values": "bf16"})
"""The window is 4 rounds wide."""


def play(folder: Path, names: str, scene: Callable[[Village], Awaitable[None]], manifest: Manifest = MANIFEST) -> None:
    async def run() -> None:
        async with village(manifest, folder, *names) as made:
            await asyncio.wait_for(scene(made), 180)

    asyncio.run(run())


def agreed(made: Village) -> bool:
    return len({tuple(sorted(peer.digests().items())) for peer in made.peers}) == 1


def grid(peer: LoopbackPeer, part: Part = EMBEDDING) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in peer.outer.followed.grids[part].values()])


def test_everybody_holds_the_same_bits_through_closed_rounds(tmp_path: Path):
    async def scene(made: Village) -> None:
        for round in range(1, 9):
            await made.round(round, made.peers)
            assert agreed(made)
        ledgers = [peer.intake.ledgers[EMBEDDING] for peer in made.peers]
        assert [ledger.folded for ledger in ledgers] == [4, 4, 4]
        assert all(ledger.history.total() == 12 for ledger in ledgers)
        assert len({peer.outer.followed.parts[EMBEDDING].claims[-1].digest for peer in made.peers}) == 1

    play(tmp_path, "abc", scene)


def test_when_others_contributed_is_known_in_the_midst_of_a_long_step(tmp_path: Path):
    async def scene(made: Village) -> None:
        slow, quick = made.peers
        noting = asyncio.create_task(slow.outer.watch_arrivals())  # nobody else looks while the step lasts
        await quick.contribute(1, 1)
        came = asyncio.get_running_loop().time()
        while not any(slow.outer.arrivals_of(1).arrived(part) for part in slow.outer.followed.parts):
            await slow.outer.discovery.news.wait(0.1)
        noting.cancel()
        assert min(slow.outer.arrivals_of(1).arrived(EMBEDDING)) < came + 10  # by the same clock

    play(tmp_path, "ab", scene)


def test_a_round_that_the_others_ended_without_anybodys_contribution_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As when two catch up from one that dies meanwhile, and its last contribution with it."""

    async def scene(made: Village) -> None:
        behind, ahead = made.peers
        await made.round(1, made.peers)
        await ahead.at(2)
        made.introduce()
        assert why_end_steps(behind.outer, 2)  # it trains no more in this round
        assert await finish_round(behind.outer, 2) == dict.fromkeys(behind.outer.followed.parts, 0)
        assert agreed(made)

    monkeypatch.setattr(round_policy, "SHORTEST_WAIT_SECONDS", 0.05)
    play(tmp_path, "ab", scene)


def test_a_round_to_which_a_stage_has_nothing_is_over_once_whoever_could_lead_it_is_past_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As when a link breaks in a round's first step, which a leader has taken, and its member rolls back. Of two
    leaders one has lost its member before, so one alone shows by its contributions how far the run is."""

    async def scene(made: Village) -> None:
        leader, other = await made.join("leader", stage=0), await made.join("other", stage=0)
        member = await made.join("member", stage=1)
        await made.round(1, made.peers)
        await made.round(2, [leader, member])
        await leader.contribute(3, 1)
        await made.calm()
        async with asyncio.timeout(20):
            waiting = asyncio.create_task(finish_round(member.outer, 3))
            while not member.said or not isinstance(member.said[-1], Waiting):  # for who may still lead
                await member.outer.discovery.news.wait(0.05)
            for peer in (leader, other):
                await peer.at(3)
            made.introduce()
            assert (await waiting)[stage_part(1)] == 0
        assert member.outer.others_at() < 3

    monkeypatch.setattr(round_policy, "SHORTEST_WAIT_SECONDS", 0.05)
    play(tmp_path, "", scene, small_manifest(outer={"liars": 1, "rounds": 50}))


def test_who_has_nothing_to_contribute_does_not_wait_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As a member that has to end a round in which its group did nothing, while its record says that it trains."""

    async def scene(made: Village) -> None:
        diligent, idle = made.peers
        await made.round(1, made.peers)
        await diligent.contribute(2, 1)
        await made.calm()
        async with asyncio.timeout(20):  # its own would be waited for for some hours
            assert await finish_round(idle.outer, 2) == dict.fromkeys(idle.outer.followed.parts, 1)

    monkeypatch.setattr(round_policy, "SHORTEST_WAIT_SECONDS", 3600.0)
    play(tmp_path, "ab", scene)


def test_a_late_contribution_changes_its_round_exactly_as_if_it_had_come_in_time(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, c = made.peers
        made.cut(c)
        await a.contribute(1, 1)
        await c.contribute(1, 3)
        await made.calm()
        for peer in (a, b):
            await peer.at(2)
        without = a.digests()
        made.introduce()
        await made.compare_all()
        for peer in made.peers:
            await peer.at(2)
        assert agreed(made)
        assert a.digests() != without
        in_time = await made.join("d")
        await made.compare_all()
        await in_time.at(2)
        assert agreed(made)

    play(tmp_path, "abc", scene)


def test_a_contribution_reaches_everybody_though_its_author_is_gone(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, c = made.peers
        c.outer.discovery.lose(a.outer.discovery.record.peer_id)
        await a.contribute(1, 1)
        await made.calm()  # b has been told, and has fetched the bytes
        for part in a.intake.ledgers:  # the author vanishes with all it had
            a.intake.contribution_store.drop(part, 1)
        await c.outer.reconciler.compare(b.outer.discovery.record)
        for peer in (b, c):
            await peer.at(1)
        assert b.digests() == c.digests()
        assert c.intake.ledgers[EMBEDDING].chosen(1).keys() == {a.id}

    play(tmp_path, "abc", scene)


async def publish(author: LoopbackPeer, blob: bytes, part: Part = EMBEDDING, round: int = 1) -> None:
    """As a liar would: whatever the bytes are, they are signed and served."""
    entry = sign_contribution(author.signer, part, round, contribution_digest(blob), len(blob))
    author.intake.contribution_store.put(entry, blob)
    author.intake.ledgers[part].take(entry)


async def honest(author: LoopbackPeer, seed: int = 5) -> bytes:
    """A valid contribution to the embedding in round 1, not yet published."""
    state = author.outer.followed.parts[EMBEDDING].state
    delta = {
        name: torch.linspace(0, seed * 1e-7, tensor.numel()).view_as(tensor) for name, tensor in state.grid.items()
    }
    record = author.outer.discovery.record
    return state.contribute(RUN, 1, record.peer_id, 1, delta, record.slot)[0]


def patched(blob: bytes, at: int, data: bytes) -> bytes:
    return blob[:at] + data + blob[at + len(data) :]


def out_of_range(blob: bytes) -> bytes:
    """The same with one bit turned, of those that say where a value lies."""
    for at in range(blob.index(b"Qm") + 46 + 4, len(blob)):
        for bit in range(8):
            changed = patched(blob, at, bytes([blob[at] ^ 1 << bit]))
            try:
                decode(changed, MANIFEST)
            except FormatError as error:
                if "outside its chunk" in str(error):
                    return changed
    raise AssertionError("no bit does it")


BAD = {
    "garbage": lambda blob: bytes(range(256)) * 2,
    "cut short": lambda blob: blob[:-3],
    "too long": lambda blob: blob + b"\0",
    "a value that is no number": lambda blob: blob[:-2] + b"\xc0\x7f",
    "a value of infinity": lambda blob: blob[:-2] + b"\x80\x7f",
    "a value beyond what the learning rate allows": lambda blob: blob[:-2] + b"\xff\x4e",
    "indices out of range": lambda blob: out_of_range(blob),
    "another round": lambda blob: patched(blob, 36, b"\x02\0\0\0"),
    "another's place": lambda blob: patched(blob, 44, b"\0\0\0\0"),
    "another run": lambda blob: patched(blob, 4, b"\xcd" * 32),
}


@pytest.mark.parametrize("kind", BAD)
def test_an_invalid_contribution_is_refused_everywhere_and_harms_nobody(tmp_path: Path, kind: str):
    async def scene(made: Village) -> None:
        a, b, liar = made.peers
        await publish(liar, BAD[kind](await honest(liar)))
        await a.contribute(1, 1)
        await made.compare_all()
        for peer in (a, b):
            await peer.at(1)
            assert peer.intake.ledgers[EMBEDDING].chosen(1).keys() == {a.id}
            assert any(isinstance(event, Refused) and event.peer == liar.id for event in peer.said)
        assert a.digests() == b.digests()

    play(tmp_path, "abl", scene)


def test_nobody_contributes_in_anothers_name(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, liar = made.peers
        blob = await honest(a)  # bytes that name a as their author, signed by the liar
        await publish(liar, blob)
        await made.compare_all()
        await b.at(1)
        assert b.intake.ledgers[EMBEDDING].chosen(1) == {}
        assert any("turned out to be" in event.reason for event in b.said if isinstance(event, Refused))

    play(tmp_path, "abl", scene)


def test_a_key_that_was_not_admitted_and_a_card_of_another_are_refused(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        stranger, blob = load_or_create(tmp_path / "stranger"), await honest(b)
        own = issue(stranger, RUN, Card(stranger.peer_id, "datacenter", 0, 0))
        volunteer = issue(made.operator, RUN, Card(stranger.peer_id, "volunteer", 1, 0))
        for card, reason in ((own, "may admit"), (b.signer.card, "another's card"), (volunteer, "no place")):
            forged = sign_contribution(
                Signer(stranger, made.authority, card), EMBEDDING, 1, contribution_digest(blob), len(blob)
            )
            with pytest.raises(FormatError, match=reason):
                await a.intake.take(forged.proof, [], b.outer.discovery.record)
        assert a.intake.ledgers[EMBEDDING].waiting == {}

    play(tmp_path, "ab", scene)


def test_two_versions_of_one_contribution_void_each_other_everywhere(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b, c, liar = made.peers
        for blob, victim in ((await honest(liar, 5), a), (await honest(liar, 6), b)):
            entry = sign_contribution(liar.signer, EMBEDDING, 1, contribution_digest(blob), len(blob))
            liar.intake.contribution_store.put(entry, blob)
            await victim.intake.take(entry.proof, [], liar.outer.discovery.record)
        assert a.intake.ledgers[EMBEDDING].chosen(1) != b.intake.ledgers[EMBEDDING].chosen(1)
        await made.compare_all()
        await made.compare_all()
        for peer in (a, b, c):
            assert peer.intake.ledgers[EMBEDDING].chosen(1) == {}
            await peer.at(1)
        assert a.digests() == b.digests() == c.digests()

    play(tmp_path, "abcl", scene)


def test_a_revoked_author_is_as_if_it_had_never_been_there(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, _, poisoner = made.peers
        for round in (1, 2, 3):
            await made.round(round, made.peers)
        record = sign_revocation(
            made.operator, made.authority, Revocation(poisoner.outer.discovery.record.peer_id, 2, 4)
        )
        assert a.intake.revoke(record)
        await made.compare_all()
        for peer in made.peers:
            await peer.at(3)
        assert agreed(made)
        plain = await made.join("plain")  # holds the same set without the poisoner, by hand
        for round in (1, 2, 3):
            kept = a.intake.ledgers[EMBEDDING].chosen(round)
            assert (poisoner.id in kept) == (round == 1)
            chosen = [decode(a.intake.contribution_store.read(sha), MANIFEST) for sha in kept.values()]
            plain.outer.followed.parts[EMBEDDING].state.replace([], chosen)
        assert torch.equal(grid(plain), grid(a))

    play(tmp_path, "abp", scene)


def test_many_names_cannot_fill_a_disk_beyond_what_its_owner_gives(tmp_path: Path):
    """The peer says that it cannot stay, since what counts for the others it has not; the others go on."""

    async def scene(made: Village) -> None:
        small, *others = made.peers
        refused: list[ResourceError] = []
        small.intake.unkept, small.intake.contribution_store.most_bytes = refused.append, 8 * BLOCK_BYTES
        for round in (1, 2):
            await made.round(round, others)
        files = small.intake.contribution_store.directory.glob("*/[!.]*")  # what takes another's place is not it yet
        assert sum(path.stat().st_size for path in files) <= 8 * BLOCK_BYTES
        assert "--max-disk" in str(refused[0])
        assert len({tuple(sorted(peer.digests().items())) for peer in others}) == 1

    play(tmp_path, "abcde", scene)


def test_an_operator_cannot_revoke_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scene(made: Village) -> None:
        peer = made.peers[0]
        for author in range(5):
            peer.intake.revoke(sign_revocation(made.operator, made.authority, Revocation(PeerId(f"Qm{author}"), 1, 1)))
        assert len(peer.intake.revocations) == 3
        assert len(peer.intake.contribution_store.revocations()) == 3

    monkeypatch.setattr(intake, "REVOCATIONS_KEPT", 3)
    play(tmp_path, "a", scene)


def test_with_a_gateway_fall_the_contributions_of_those_whom_it_let_in(tmp_path: Path):
    async def scene(made: Village) -> None:
        made.gateways = {"p": "gate", "q": "gate"}
        a, b = made.peers
        p, q = await made.join("p"), await made.join("q")
        for round in (1, 2, 3):
            await made.round(round, made.peers)
        assert len(a.intake.ledgers[EMBEDDING].chosen(3)) == 4
        gateway = load_or_create(tmp_path / "gate").peer_id
        assert b.intake.revoke(sign_revocation(made.operator, made.authority, Revocation(gateway, 2, 4)))
        await made.compare_all()
        for peer in made.peers:
            await peer.at(3)
        assert agreed(made)
        for round, authors in ((1, {a.id, b.id, p.id, q.id}), (2, {a.id, b.id}), (3, {a.id, b.id})):
            for peer in made.peers:
                assert set(peer.intake.ledgers[EMBEDDING].chosen(round)) == authors
        await made.round(4, made.peers)
        assert set(a.intake.ledgers[EMBEDDING].chosen(4)) == {a.id, b.id}
        del made.gateways["q"]  # the operator's own node lets it in anew
        await made.leave(q)
        again = await made.join("q")
        await catch_up(again.outer)
        await made.round(5, made.peers)
        assert agreed(made)
        assert set(a.intake.ledgers[EMBEDDING].chosen(5)) == {a.id, b.id, q.id}
        kept = await made.start("b")  # from its disk: the revocation is on it, and what has fallen stays so
        assert set(kept.intake.ledgers[EMBEDDING].chosen(3)) == {a.id, b.id}
        assert gateway in {each.author for each in kept.intake.revocations}

    play(tmp_path, "ab", scene)


def test_a_revocation_that_is_not_the_operators_says_nothing(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        forged = sign_revocation(
            load_or_create(tmp_path / "b"), made.authority, Revocation(a.outer.discovery.record.peer_id, 1, 1)
        )
        a.outer.reconciler.revoke([forged], b.outer.discovery.record.peer_id)
        assert a.intake.revocations == {}
        assert any("not this run's operator" in event.reason for event in a.said if isinstance(event, Refused))

    play(tmp_path, "ab", scene)


def test_a_newcomer_takes_the_closed_rounds_from_several_peers_and_the_open_ones_by_their_word(tmp_path: Path):
    async def scene(made: Village) -> None:
        for round in range(1, 8):
            await made.round(round, made.peers)
        newcomer = await made.join("n")
        await catch_up(newcomer.outer)
        assert newcomer.outer.clock == 8
        assert agreed(made)
        assert [event for event in newcomer.said if isinstance(event, CaughtUp)] == [CaughtUp(7)]
        await made.round(8, made.peers)
        assert agreed(made)
        assert len(newcomer.intake.ledgers[EMBEDDING].chosen(8)) == 4

    play(tmp_path, "abc", scene)


def slow(made: Village, rounds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a newcomer asks for the pieces of a snapshot, the others go through these rounds."""
    fetch, left = Contacts.fetch, list(rounds)

    async def after_rounds(*asked: Any) -> bytes:
        late, left[:] = left[:], []
        for round in late:
            await fetch(*asked)
            await made.round(round, made.peers)
        return await fetch(*asked)

    monkeypatch.setattr(Contacts, "fetch", after_rounds)


PATIENT = small_manifest(
    outer={"grace": 2, "liars": 0, "rounds": 100, "chunk_side": 8, "top_k": 1, "values": "2bit"},
    replicas={"groups": 0, "datacenters": 2, "stages": 1},
)
KEPT = min(rounds_kept(PATIENT, part) for part in (EMBEDDING, stage_part(0)))


@pytest.mark.parametrize("lasting", [3, 4 + KEPT // 2, 4 + KEPT])
def test_a_newcomer_that_takes_many_rounds_to_fetch_a_state_comes_to_the_others_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: int
):
    async def scene(made: Village) -> None:
        for round in range(1, 8):
            await made.round(round, made.peers)
        newcomer = await made.join("n")
        made.peers.remove(newcomer)
        slow(made, range(8, 8 + lasting), monkeypatch)
        await catch_up(newcomer.outer)
        made.peers.append(newcomer)
        made.introduce()
        while newcomer.outer.clock == 1:  # on a busy machine somebody may not have answered in time: it tries again
            await catch_up(newcomer.outer)
            made.introduce()
        assert newcomer.outer.clock == 8 + lasting
        assert agreed(made)
        await made.round(8 + lasting, made.peers)
        assert agreed(made)
        assert len({peer.outer.followed.parts[EMBEDDING].claims[-1] for peer in made.peers}) == 1
        assert not [event for event in newcomer.said if isinstance(event, Refused | Resynchronised)]

    play(tmp_path, "ab", scene, PATIENT)


def test_who_takes_longer_than_rounds_are_kept_says_so_and_takes_a_later_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def scene(made: Village) -> None:
        for round in range(1, 8):
            await made.round(round, made.peers)
        newcomer = await made.join("n")
        made.peers.remove(newcomer)
        lasting = 4 + rounds_kept(PATIENT, EMBEDDING) + 6
        slow(made, range(8, 8 + lasting), monkeypatch)
        await catch_up(newcomer.outer)
        assert any("keep" in event.doing for event in newcomer.said if isinstance(event, Progress))
        await catch_up(newcomer.outer)
        made.peers.append(newcomer)
        assert agreed(made)

    play(tmp_path, "ab", scene, PATIENT)


def test_closed_rounds_are_given_out_after_a_restart_too(tmp_path: Path):
    async def scene(made: Village) -> None:
        for round in range(1, 10):
            await made.round(round, made.peers)
        a = made.peers[0]
        again = await made.start("a")
        for part, ledger in again.intake.ledgers.items():
            was = a.intake.ledgers[part]
            assert ledger.closed.keys() == was.closed.keys() != set()
            assert {each.key for entries in ledger.closed.values() for each in entries} == {
                each.key for entries in was.closed.values() for each in entries
            }

    play(tmp_path, "ab", scene, PATIENT)


def test_a_peer_that_serves_a_wrong_snapshot_is_passed_over(tmp_path: Path):
    async def scene(made: Village) -> None:
        for round in range(1, 8):
            await made.round(round, made.peers)
        liar = min(made.peers, key=lambda peer: peer.id)  # the first to be asked
        for _, path in liar.outer.followed.snapshots.headers.values():
            path.write_bytes(bytes(len(path.read_bytes())))
        newcomer = await made.join("n")
        await catch_up(newcomer.outer)
        assert agreed(made)
        assert {event.peer for event in newcomer.said if isinstance(event, Refused)} == {liar.id}

    play(tmp_path, "abc", scene)


def test_whoever_went_another_way_takes_the_state_of_the_others_and_loses_nothing(tmp_path: Path):
    async def scene(made: Village) -> None:
        *majority, alone = made.peers
        everybody = made.peers
        await made.round(1, everybody)
        made.cut(alone)
        made.peers = majority
        for round in range(2, 9):
            await made.round(round, majority)
        made.peers = [alone]
        for round in range(2, 9):
            await made.round(round, [alone])
        state = alone.outer.followed.parts[EMBEDDING].state
        before = {name: tensor.clone() for name, tensor in state.error_feedback.items()}
        own = alone.outer.followed.parts[EMBEDDING].own
        lost = [decode(alone.intake.contribution_store.read(own[round]), MANIFEST) for round in range(2, 5)]
        made.peers = everybody
        made.introduce()
        await made.compare_all()
        await agree(alone.outer)
        for peer in majority:  # what it made in the last two rounds came in time, and counts
            await peer.at(8)
        assert len(majority[0].intake.ledgers[EMBEDDING].chosen(8)) == 4
        assert agreed(made)
        for contribution in lost:  # closed without it: back into its error feedback, to the last unit
            for name, sparse in contribution.tensors.items():
                positions = _positions(name, sparse.offsets)
                before[name].view(-1)[positions] += torch.from_numpy(sparse.values).to(torch.int32)
        assert all(torch.equal(before[name], tensor) for name, tensor in state.error_feedback.items())

    play(tmp_path, "abcx", scene)


def test_one_liar_convinces_nobody_who_has_not_heard_the_others(tmp_path: Path):
    async def scene(made: Village) -> None:
        *honest, liar = made.peers
        await made.round(1, made.peers)
        made.cut(liar)
        for side in (honest, [liar]):
            made.peers = side
            for round in range(2, 10):
                await made.round(round, side)
        one, before = honest[0], honest[0].digests()
        for claims in liar.outer.reconciler.claims.values():
            claims[:] = [Claim(each.folded, each.digest, 10**6, True) for each in claims]
        one.outer.reconciler.others_claims.clear()
        one.outer.reconciler.receive_statement(liar.outer.reconciler.statement(), liar.id)
        await agree(one.outer)
        assert one.digests() == before
        assert not [event for event in one.said if isinstance(event, Resynchronised)]

    play(tmp_path, "abx", scene, MANIFEST.model_copy(update={"outer": MANIFEST.outer.model_copy(update={"liars": 1})}))


def test_a_state_that_is_claimed_and_cannot_be_shown_stands_nowhere(tmp_path: Path):
    async def scene(made: Village) -> None:
        one, liar = made.peers
        for round in range(1, 8):
            await made.round(round, made.peers)
        before = one.digests()
        for part, claims in liar.outer.reconciler.claims.items():
            claims[:] = [Claim(each.folded, part.encode().hex().ljust(64, "0"), 10**6, True) for each in claims]
        await one.outer.reconciler.compare(liar.outer.discovery.record)
        await agree(one.outer)
        assert one.digests() == before
        said = len(one.said)
        await agree(one.outer)
        assert len(one.said) == said  # it is not asked for again

    play(tmp_path, "ax", scene)


def _positions(name: str, offsets: Int32Array) -> torch.Tensor:
    shape = part_layout(MANIFEST, EMBEDDING)[name]
    return torch.from_numpy(chunk_grid(shape, 4, 2).positions(offsets))


def test_a_peer_that_starts_again_holds_what_it_held(tmp_path: Path):
    async def scene(made: Village) -> None:
        for round in range(1, 8):
            await made.round(round, made.peers)
        a = made.peers[0]
        again = await made.start("a")
        assert any(isinstance(event, Resumed) for event in again.said)
        assert again.outer.clock == 7 or again.outer.clock == 8
        await again.at(7)
        assert again.digests() == a.digests()
        for part in (EMBEDDING, stage_part(0)):
            was, now = (each.outer.followed.parts[part] for each in (a, again))
            assert all(torch.equal(was.state.error_feedback[n], t) for n, t in now.state.error_feedback.items())
            assert now.authored.sent == was.authored.sent

    play(tmp_path, "ab", scene)


def test_who_still_reads_its_folder_says_nothing_of_what_it_holds_and_refuses_nothing(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, starting = made.peers
        check, starting.intake.check = starting.intake.check, nothing_is_valid
        await a.contribute(1, 1)  # which it tells
        await made.calm()
        assert not await a.outer.reconciler.compare(starting.outer.discovery.record, whole=True)
        a.intake.catch_up(EMBEDDING, 1, 1)
        assert not a.intake.spoken[EMBEDDING]
        assert starting.id in a.outer.discovery.lost
        assert not starting.intake.invalid
        assert not starting.outer.reconciler.bans.objection(a.outer.discovery.record.peer_id)
        starting.intake.check = check
        starting.outer.discovery.update_record(round=0)
        await starting.outer.reconciler.compare(a.outer.discovery.record)  # it is ready, and there again
        assert a.id in starting.intake.ledgers[EMBEDDING].chosen(1)
        assert starting.id not in a.outer.discovery.lost

    play(tmp_path, "ab", scene)


def test_who_alone_holds_its_stage_goes_on_from_its_own_folder(tmp_path: Path):
    async def scene(made: Village) -> None:
        leader, member = await made.join("leader", stage=0), await made.join("member", stage=1)
        for round in (1, 2):
            await made.round(round, made.peers)
        await member.contribute(3, 5)
        await made.leave(member)
        back = await made.start("member", stage=1)
        made.peers = [leader, back]
        made.introduce()
        await catch_up(back.outer)
        assert not any("cannot catch up" in event.doing for event in back.said if isinstance(event, Progress))
        assert back.outer.contributed
        await leader.contribute(3, 6)
        await leader.at(3)  # before the member has: its own folder is still the last word
        await made.leave(back)
        again = await made.start("member", stage=1)
        made.peers = [leader, again]
        made.introduce()
        await catch_up(again.outer)
        assert again.outer.clock == 4
        assert again.digests()[EMBEDDING] == leader.digests()[EMBEDDING]

    play(tmp_path, "", scene)


def test_no_author_makes_two_contributions_of_one_name_whatever_it_forgot(tmp_path: Path):
    async def scene(made: Village) -> None:
        a, b = made.peers
        await a.contribute(1, 1)
        again = await made.start("a")
        await again.contribute(1, 2)  # the same round once more: it goes into the error feedback
        entries = again.intake.ledgers[EMBEDDING].entries(1)
        assert [entry.name for entry in entries] == [
            ContributionName(EMBEDDING, 1, again.outer.discovery.record.peer_id)
        ]
        for _ in range(2):  # it may be on its way still from where its author was, and be asked for anew
            await b.outer.reconciler.compare(again.outer.discovery.record)
            await b.outer.reconciler.learnt()
        assert len(b.intake.ledgers[EMBEDDING].chosen(1)) == 1

    play(tmp_path, "ab", scene)


def test_who_has_served_another_stage_since_makes_no_second_contribution_to_a_round(tmp_path: Path):
    """What it had here it has forgotten, but for the number of the round."""

    async def scene(made: Village) -> None:
        a, b = made.peers
        await a.contribute(1, 1)
        await b.outer.reconciler.compare(a.outer.discovery.record)
        await b.outer.reconciler.learnt()
        write_checkpoint(tmp_path / "a", replace(candidates(tmp_path / "a")[0], parts={}, optimizer={}), keep=1)
        leave_stage(tmp_path / "a")
        again = await made.start("a")
        assert (again.outer.clock, again.outer.contributed) == (1, False)
        await again.contribute(1, 2)
        for one, other in ((again, b), (b, again)):
            await one.outer.reconciler.compare(other.outer.discovery.record)
            await one.outer.reconciler.learnt()
            name = ContributionName(EMBEDDING, 1, again.outer.discovery.record.peer_id)
            assert len(one.intake.ledgers[EMBEDDING].versions(name)) == 1

    play(tmp_path, "ab", scene)


async def ask(asked: LoopbackPeer, by: LoopbackPeer, count: int) -> None:
    async with by.outer.reconciler.contacts.to(asked.outer.discovery.record) as channel:
        stub = reconciliation_pb2_grpc.ReconciliationStub(channel)
        await stub.Ask(pb.Question(part=EMBEDDING, keys=range(count)), metadata=handshake(MANIFEST))


def test_entries_are_given_out_in_measured_numbers_only(tmp_path: Path):
    async def scene(made: Village) -> None:
        with pytest.raises(RefusedError, match="too much at once"):
            await ask(made.peers[0], made.peers[1], 65)

    play(tmp_path, "ab", scene)


def test_what_a_peer_has_dropped_does_not_come_back_from_its_disk(tmp_path: Path):
    async def scene(made: Village) -> None:
        *others, author, asleep = made.peers
        everybody = made.peers
        await made.round(1, everybody)
        made.cut(author, asleep)  # from the others: they still hear each other
        await author.contribute(2, 7)
        await made.calm()
        assert author.id in asleep.intake.ledgers[EMBEDDING].chosen(2)
        asleep.outer.discovery.lose(author.id)
        made.peers = others
        for round in range(2, 5):
            await made.round(round, others)
        made.peers = [*others, asleep]
        made.introduce()
        await catch_up(asleep.outer)
        assert author.id not in asleep.intake.ledgers[EMBEDDING].chosen(2)
        assert agreed(made)
        again = await made.start("s")  # with nobody to ask
        await again.at(asleep.outer.clock - 1)
        assert again.digests() == asleep.digests()

    play(tmp_path, "abxs", scene)


def test_what_is_dropped_after_a_start_is_taken_out_of_the_grid_it_was_in(tmp_path: Path):
    async def scene(made: Village) -> None:
        *others, author, killed = made.peers
        await made.round(1, made.peers)
        made.cut(author, killed)  # they still hear each other
        await author.contribute(2, 7)
        await made.calm()
        await killed.at(2)  # it has finished the round: what the others never heard of is in its grids
        await killed.outer.save({})
        made.peers = others
        for round in range(2, 5):
            await made.round(round, others)
        again = await made.start("k")
        made.peers = [*others, again]
        made.introduce()
        await catch_up(again.outer)
        assert author.id not in again.intake.ledgers[EMBEDDING].chosen(2)
        assert agreed(made)
        dropped = killed.outer.followed.parts[EMBEDDING].settled[2][author.id]
        assert again.intake.contribution_store.lookup(dropped) is None

    play(tmp_path, "abxk", scene)


def test_what_a_peer_has_slept_through_is_not_closed_before_it_has_caught_up(tmp_path: Path):
    async def scene(made: Village) -> None:
        *awake, asleep = made.peers
        everybody = made.peers
        await made.round(1, everybody)
        made.cut(asleep)
        made.peers = awake
        for round in range(2, 12):
            await made.round(round, awake)
        asleep.outer.reconciler.receive_statement(
            awake[0].outer.reconciler.statement(), awake[0].id
        )  # the others are far ahead
        await asleep.outer.settle()
        assert asleep.intake.ledgers[EMBEDDING].folded == 0
        made.peers = everybody
        made.introduce()
        await catch_up(asleep.outer)
        assert agreed(made)

    play(tmp_path, "abs", scene)


def test_who_awaits_a_state_says_how_far_the_run_is_known_to_be_and_who_trains_says_nothing(tmp_path: Path):
    async def scene(on: Village) -> None:
        outer = on.peers[0].outer
        for known, part in ((7, 8), (9, 8)):
            outer.progress.raise_to(known, {EMBEDDING: part})
            outer.enter(RunPhase.AWAITING_STATE)
            record = outer.discovery.record
            assert (record.phase, record.awaits) == (RunPhase.AWAITING_STATE, max(known, part))
        outer.enter(RunPhase.TRAINING)
        assert (outer.discovery.record.phase, outer.discovery.record.awaits) == ("", 0)

    play(tmp_path, "a", scene)
