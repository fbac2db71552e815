"""Records: read only when their peer signed them, was admitted, and says of itself what its card says;
and statements: what a peer says of its closed rounds, and whether that decides anything."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import FormatError
from protocol.identity import EMBEDDING, PeerId, ReplicaId, RunId, stage_part
from protocol.limits import ADDRESS_CHARACTERS, RECORD_BYTES
from protocol.manifest_tables import MOST_STAGES
from protocol.outer.history import Claim
from protocol.outer.phases import RunPhase
from protocol.patience import RECORD_SECONDS
from protocol.trust import signed
from protocol.trust.keys import Identity, load_or_create
from protocol.trust.membership_card import Authority, Card, Role, Signer, issue
from protocol.trust.records import (
    RECORDS_UNDER_A_KEY,
    STATEMENT,
    PeerRecord,
    Register,
    expiration,
    make_statement,
    pack_record,
    peers_key,
    peers_keys,
    read_record,
    read_statement,
    require_rounds,
    sign_record,
)
from tests.reference.admitted import identity
from tests.reference.small_manifest import small_manifest

RUN, OTHER = RunId("ab" * 32), RunId("cd" * 32)


@pytest.fixture
def operator(tmp_path: Path) -> Identity:
    return load_or_create(tmp_path / "operator")


@pytest.fixture
def me(tmp_path: Path, operator: Identity) -> Signer:
    return admitted(tmp_path / "me", operator)


def admitted(folder: Path, operator: Identity, run: RunId = RUN) -> Signer:
    """A volunteer of stage 1."""
    identity = load_or_create(folder)
    card = issue(operator, run, Card(identity.peer_id, "volunteer", 1, 7))
    return Signer(identity, Authority(run, operator.peer_id), card)


def record_of(peer: Signer, **changes: object) -> PeerRecord:
    record = PeerRecord(peer_id=peer.identity.peer_id, address="h:1", role="volunteer", stage=1, slot=7)
    return record.model_copy(update=changes)


def signed_as(way: str, signer: Signer, record: PeerRecord) -> bytes:
    return sign_record(signer, record) if way == "record" else make_statement(signer, record, {})


def read_as(way: str, data: bytes, peer: Signer) -> PeerRecord:
    if way == "record":
        return read_record(data, peer.identity.peer_id, peer.authority)
    return read_statement(data, peer.authority).record


def refuse(me: Signer, **changes: object) -> None:
    """See that a record is refused that says this, however it is signed."""
    packed = msgpack.packb({**record_of(me).model_dump(), **changes})
    data = signed.sign_fields(me.identity, "record", [RUN, packed, me.card])
    with pytest.raises(FormatError, match="is malformed"):
        read_record(data, me.identity.peer_id, me.authority)


in_both_ways = pytest.mark.parametrize("way", ["record", "statement"])


@in_both_ways
def test_the_record_of_who_was_let_in_by_a_revoked_gateway_is_not_read(
    way: str, me: Signer, tmp_path: Path, operator: Identity
):
    gateway, another = load_or_create(tmp_path / "gateway"), load_or_create(tmp_path / "another")
    revoked: set[PeerId] = set()
    authority = Authority(RUN, operator.peer_id, revoked.__contains__)
    theirs = issue(operator, RUN, Card(gateway.peer_id, "gateway", 0, 0))
    by_gateway = issue(gateway, RUN, Card(me.identity.peer_id, "volunteer", 1, 7), theirs)
    let_in = Signer(me.identity, authority, by_gateway)
    told = signed_as(way, let_in, record_of(me))
    assert read_as(way, told, let_in).issuer == gateway.peer_id
    revoked.add(another.peer_id)
    assert read_as(way, told, let_in).issuer == gateway.peer_id
    revoked.add(gateway.peer_id)
    with pytest.raises(FormatError, match="has taken out the gateway that let peer"):
        read_as(way, told, let_in)
    assert authority.admitted(me.identity.peer_id, by_gateway)  # what it signed before may count yet
    anew = Signer(me.identity, authority, me.card)
    assert read_as(way, signed_as(way, anew, record_of(me)), anew).issuer == ""


@in_both_ways
def test_who_let_a_peer_in_is_told_by_its_card_alone(way: str, me: Signer):
    class Told(PeerRecord):
        issuer: PeerId = PeerId("QmGateway")

    said = Told(**record_of(me).model_dump())
    with pytest.raises(FormatError, match="its card tells who let it in"):
        read_as(way, signed_as(way, me, said), me)


@in_both_ways
def test_a_record_is_read_as_it_was_signed(way: str, me: Signer):
    told = record_of(me, round=3, replica="x", scores={"QmA": -0.25, "QmB": 1e-9})
    assert read_as(way, signed_as(way, me, told), me) == told


@in_both_ways
def test_who_cannot_be_dialled_says_by_whom_it_is_reached(way: str, me: Signer):
    told = record_of(me, via=["/ip4/192.0.2.1/tcp/7701/p2p/QmA", "/dns4/relay.example.org/tcp/7701/p2p/QmB"])
    assert read_as(way, signed_as(way, me, told), me) == told
    assert read_as(way, signed_as(way, me, record_of(me, relays=True)), me).relays


def test_who_can_be_dialled_and_relays_nothing_says_nothing_of_it(me: Signer):
    assert not {"via", "relays"} & set(msgpack.unpackb(pack_record(record_of(me))))


@pytest.mark.parametrize(
    "via",
    [
        [f"/ip4/192.0.2.1/tcp/{port}/p2p/QmA" for port in range(4)],
        [""],
        ["192.0.2.1:7701"],
        ["/ip4/192.0.2.1/tcp/7701/p2p/QmA/p2p-circuit"],
        ["/ip4/192.0.2.1/tcp/7701/p2p/" + "Q" * 200],
        [7701],
        "/ip4/192.0.2.1/tcp/7701/p2p/QmA",
        {"/ip4/192.0.2.1/tcp/7701/p2p/QmA": 1},
    ],
)
def test_other_relays_than_a_few_addresses_are_refused(me: Signer, via: object):
    refuse(me, via=via)


@in_both_ways
def test_a_volunteer_tells_how_fast_it_is(way: str, me: Signer):
    told = record_of(me, tokens_per_second=1234.5)
    assert read_as(way, signed_as(way, me, told), me) == told


@in_both_ways
def test_who_still_settles_the_runs_last_state_says_so(way: str, me: Signer):
    told = record_of(me, ending=True)
    assert read_as(way, signed_as(way, me, told), me) == told


def test_who_has_nothing_to_say_of_its_speed_and_of_the_end_says_nothing(me: Signer):
    assert not {"tokens_per_second", "ending", "moves_to"} & msgpack.unpackb(pack_record(record_of(me))).keys()


@in_both_ways
def test_a_volunteer_tells_which_other_stages_it_would_serve(way: str, me: Signer):
    told = record_of(me, moves_to=[*range(MOST_STAGES)])
    assert read_as(way, signed_as(way, me, told), me) == told


@pytest.mark.parametrize("stages", [[-1], [MOST_STAGES], [1] * (MOST_STAGES + 1), ["1"], [None], 1, "any"])
def test_stages_that_are_none_are_refused(me: Signer, stages: object):
    packed = msgpack.packb({**record_of(me).model_dump(), "moves_to": stages})
    data = signed.sign_fields(me.identity, "record", [RUN, packed, me.card])
    with pytest.raises(FormatError, match="malformed"):
        read_record(data, me.identity.peer_id, me.authority)


@pytest.mark.parametrize("speed", [-1.0, 2e9, math.nan, math.inf, "fast", None, [1.0]])
def test_a_speed_that_is_none_is_refused(me: Signer, speed: object):
    packed = msgpack.packb({**record_of(me).model_dump(), "tokens_per_second": speed})
    data = signed.sign_fields(me.identity, "record", [RUN, packed, me.card])
    with pytest.raises(FormatError, match="malformed"):
        read_record(data, me.identity.peer_id, me.authority)


@in_both_ways
def test_nobody_speaks_for_another(way: str, me: Signer, tmp_path: Path, operator: Identity):
    other = admitted(tmp_path / "other", operator)
    with pytest.raises(FormatError, match=f"speaks for {me.identity.peer_id}"):
        read_as(way, signed_as(way, other, record_of(me)), other)


def test_nobody_signs_for_another(me: Signer, tmp_path: Path, operator: Identity):
    other = admitted(tmp_path / "other", operator)
    for record in (record_of(me), record_of(other)):
        with pytest.raises(FormatError, match=f"signed a record of {me.identity.peer_id}"):
            read_record(sign_record(other, record), me.identity.peer_id, me.authority)


@in_both_ways
def test_a_stranger_is_not_of_the_run_by_its_own_word_nor_by_anothers_card(
    way: str, me: Signer, tmp_path: Path, operator: Identity
):
    stranger = admitted(tmp_path / "stranger", load_or_create(tmp_path / "no operator"))
    with pytest.raises(FormatError, match="nobody who may admit"):
        read_as(way, signed_as(way, stranger, record_of(stranger)), replace(stranger, authority=me.authority))
    borrowed = replace(stranger, card=me.card, authority=me.authority)
    with pytest.raises(FormatError, match="another's card"):
        read_as(way, signed_as(way, borrowed, record_of(stranger)), borrowed)


@in_both_ways
def test_another_run_is_another_run(way: str, me: Signer, tmp_path: Path, operator: Identity):
    there = admitted(tmp_path / "me", operator, OTHER)
    with pytest.raises(FormatError, match="of this run"):
        read_as(way, signed_as(way, there, record_of(there)), me)
    with pytest.raises(FormatError, match="another run"):
        read_as(way, signed_as(way, replace(me, card=there.card), record_of(me)), me)


@in_both_ways
@pytest.mark.parametrize("change", [{"role": "datacenter"}, {"stage": 0}, {"slot": 8}, {"on_trial": True}])
def test_a_peer_has_the_place_that_its_card_names(way: str, me: Signer, change: dict[str, object]):
    with pytest.raises(FormatError, match="another place than its card"):
        read_as(way, signed_as(way, me, record_of(me, **change)), me)


@in_both_ways
@pytest.mark.parametrize(
    "fields",
    [
        {"stage": -1},
        {"stage": "1"},
        {"role": "king"},
        {"round": 2**40},
        {"extra": 1},
        {"address": "x" * 999},
        {"scores": {"QmA": math.nan}},
        {"scores": {"QmA": math.inf}},
        {"scores": {"QmA": "1"}},
        {"scores": {"": 0.5}},
        {"scores": {"x" * 65: 0.5}},
        {"scores": {f"Qm{number}": 0.5 for number in range(17)}},
    ],
)
def test_a_field_out_of_its_range_is_refused(way: str, me: Signer, fields: dict[str, object]):
    packed = msgpack.packb(record_of(me).model_dump() | fields)
    told = [{}] if way == "statement" else []
    with pytest.raises(FormatError, match="malformed"):
        read_as(way, signed.sign_fields(me.identity, way, [RUN, packed, *told, me.card]), me)


def test_claims_come_with_a_statement_and_not_more_than_three(me: Signer):
    claims = {EMBEDDING: [Claim(round, "ab" * 32, 3 * round, True) for round in range(1, 6)]}
    record = record_of(me, replica="x")
    assert read_statement(make_statement(me, record, claims), me.authority).claims == {
        EMBEDDING: claims[EMBEDDING][-3:]
    }


def test_a_long_record_is_refused_before_anything_of_it_is_looked_at(me: Signer):
    with pytest.raises(FormatError, match="bytes at most"):
        read_record(bytes(RECORD_BYTES + 1), "QmA", me.authority)


def test_the_longest_record_of_an_honest_peer_fits(me: Signer, tmp_path: Path, operator: Identity):
    gateway = load_or_create(tmp_path / "gateway")
    theirs = issue(operator, RUN, Card(gateway.peer_id, "gateway", 0, 0))
    card = issue(gateway, RUN, Card(me.identity.peer_id, "volunteer", 1, 7), theirs)
    named = {"address": "x" * 256, "libp2p": f"/dns4/{'x' * 189}/tcp/65535/p2p/{me.identity.peer_id}"}
    scores = {f"{number:064}": 1 / 3 for number in range(16)}
    numbers = {"round": 2**31 - 1, "contributed": 2**31 - 1, "sequence": 2**62 - 1}
    longest = record_of(me, replica=me.identity.peer_id, scores=scores, **named, **numbers)
    heard = read_record(sign_record(replace(me, card=card), longest), me.identity.peer_id, me.authority)
    assert heard == longest.model_copy(update={"issuer": gateway.peer_id})


@given(st.one_of(st.binary(max_size=200), st.integers(), st.text(), st.none()))
def test_garbage_is_refused(garbage: object):
    with pytest.raises(FormatError):
        read_record(garbage, "QmA", Authority(RUN, PeerId("QmOperator")))


def test_a_record_without_its_signature_is_refused(me: Signer):
    for data in (pack_record(record_of(me)), sign_record(me, record_of(me))[97:]):
        with pytest.raises(FormatError):
            read_record(data, me.identity.peer_id, me.authority)


def test_the_register_gives_the_records_that_are_valid(me: Signer, tmp_path: Path, operator: Identity):
    register, other = Register(me.authority, small_manifest()), admitted(tmp_path / "other", operator)
    found = {
        me.identity.peer_id: sign_record(me, record_of(me)),
        other.identity.peer_id: sign_record(me, record_of(me)),
        "QmA": b"nonsense",
        "QmB": None,
    }
    assert register.read(found) == (record_of(me),)


def test_a_record_has_its_place_under_one_key(me: Signer):
    register = Register(me.authority, small_manifest(replicas={"groups": 500, "stages": 2, "datacenters": 24}))
    owner, record = me.identity.peer_id, record_of(me, sequence=5_000)
    own = register.key(owner)
    assert register.expiration(own, owner, sign_record(me, record)) == expiration(record) == 5 + RECORD_SECONDS
    for key in set(register.keys) - {own}:
        with pytest.raises(FormatError, match="another peer's key"):
            register.expiration(key, owner, sign_record(me, record))


def test_the_peers_of_a_small_run_share_one_key_and_those_of_a_large_one_spread_over_many():
    assert len(peers_keys(RUN, small_manifest())) == 1
    large = small_manifest(replicas={"groups": 500, "stages": 2, "datacenters": 24})
    keys = peers_keys(RUN, large)
    assert len(keys) == 16
    under = [peers_key(RUN, large, f"Qm{number}") for number in range(1024)]
    assert set(under) == set(keys)
    assert max(map(under.count, keys)) < 2 * RECORDS_UNDER_A_KEY


# Statements

OPERATOR, ME = identity("operator"), identity("me")
AUTHORITY = Authority(RUN, OPERATOR.peer_id)
DIGEST = "ef" * 32


def speaker(role: Role = "volunteer", on_trial: bool = False) -> Signer:
    return Signer(ME, AUTHORITY, issue(OPERATOR, RUN, Card(ME.peer_id, role, 0, 3, on_trial)))


def spoken(role: Role = "volunteer", on_trial: bool = False, trains: bool = True) -> PeerRecord:
    replica = ReplicaId(ME.peer_id) if trains else ReplicaId("")
    place: dict[str, Any] = {"role": role, "stage": 0, "slot": 3, "on_trial": on_trial}
    return PeerRecord(peer_id=ME.peer_id, address="10.0.0.1:4000", replica=replica, **place)


@pytest.mark.parametrize(
    ("role", "on_trial", "trains", "votes"),
    [
        ("volunteer", False, True, True),
        ("volunteer", False, False, False),
        ("volunteer", True, True, False),
        ("datacenter", False, True, True),
        ("datacenter", True, True, False),
        ("observer", False, False, False),
    ],
)
def test_only_who_trains_and_counts_has_a_vote(role: Role, on_trial: bool, trains: bool, votes: bool):
    claims = {EMBEDDING: [Claim(4, DIGEST, 9, True)], stage_part(0): []}
    told = read_statement(make_statement(speaker(role, on_trial), spoken(role, on_trial, trains), claims), AUTHORITY)
    assert told.claims == {EMBEDDING: [Claim(4, DIGEST, 9, votes)], stage_part(0): []}


def test_the_last_three_closed_rounds_are_told():
    claims = {EMBEDDING: [Claim(round, DIGEST, round, True) for round in range(1, 7)]}
    told = read_statement(make_statement(speaker(), spoken(), claims), AUTHORITY)
    assert [claim.folded for claim in told.claims[EMBEDDING]] == [4, 5, 6]


@pytest.mark.parametrize(
    "claims",
    [
        [[4, bytes(32), 9]] * 4,
        [[-1, bytes(32), 9]],
        [[4, bytes(31), 9]],
        [[4, bytes(32), True]],
        [[True, bytes(32), 9]],
        [[4, bytes(32)]],
        "none",
    ],
)
def test_claims_that_cannot_be_are_refused(claims: object):
    fields = [RUN, pack_record(spoken()), {EMBEDDING: claims}, speaker().card]
    with pytest.raises(FormatError, match="claims nothing that can be read"):
        read_statement(signed.sign_fields(ME, STATEMENT, fields), AUTHORITY)


@in_both_ways
def test_a_peer_names_several_addresses(way: str, me: Signer):
    told = record_of(me, other_addresses=["[2001:db8::2]:4000", "10.8.0.2:4000", "a" * ADDRESS_CHARACTERS])
    assert read_as(way, signed_as(way, me, told), me) == told
    assert told.addresses[0] == told.address
    assert "other_addresses" not in msgpack.unpackb(pack_record(record_of(me)))


@pytest.mark.parametrize(
    "others", [["a:1"] * 4, [""], ["a" * (ADDRESS_CHARACTERS + 1)], [1], [None], "a:1", {"a:1": 1}]
)
def test_other_addresses_than_a_few_are_refused(me: Signer, others: object):
    refuse(me, other_addresses=others)


@in_both_ways
def test_a_peer_says_which_round_it_awaits_the_state_of_and_none_beyond_the_run(way: str, me: Signer):
    told = record_of(me, phase=RunPhase.AWAITING_STATE, round=18, awaits=21)
    assert read_as(way, signed_as(way, me, told), me) == told
    assert "awaits" not in msgpack.unpackb(pack_record(record_of(me)))
    require_rounds(told, small_manifest(outer={"rounds": 21}))
    with pytest.raises(FormatError, match="speaks of round 21"):
        require_rounds(told, small_manifest(outer={"rounds": 20}))
