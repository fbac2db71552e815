"""Records: read only when they are well formed and speak for their owner."""

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import FormatError
from protocol.identity import PeerId, RunId
from protocol.limits import RECORD_BYTES
from protocol.records import RECORDS_UNDER_A_KEY, PeerRecord, pack, peers_key, peers_keys, unpack
from tests.reference.small_manifest import small_manifest

RECORD = PeerRecord(peer_id=PeerId("QmA"), address="127.0.0.1:1", role="volunteer", stage=1, slot=0)


def test_a_record_round_trips():
    told = RECORD.model_copy(update={"round": 3, "digests": {"stage-1": "ab" * 32}})
    assert unpack(pack(told), "QmA") == told


def test_nobody_speaks_for_another():
    with pytest.raises(FormatError, match="speaks for QmA"):
        unpack(pack(RECORD), "QmB")


@pytest.mark.parametrize(
    "fields",
    [
        {"scores": {"Qm": float("nan")}},
        {"scores": {"Q" * 65: 0.5}},
        {"scores": dict.fromkeys(map(str, range(17)), 0.5)},
        {"stage": -1},
        {"stage": "1"},
        {"role": "king"},
        {"round": 2**40},
        {"extra": 1},
        {"address": "x" * 999},
    ],
)
def test_a_field_out_of_its_range_is_refused(fields: dict[str, object]):
    with pytest.raises(FormatError, match="malformed"):
        unpack(msgpack.packb(RECORD.model_dump() | fields), "QmA")


def test_a_long_record_is_refused_before_it_is_parsed():
    with pytest.raises(FormatError, match="bytes at most"):
        unpack(b"\0" * (RECORD_BYTES + 1), "QmA")


@given(st.one_of(st.binary(max_size=200), st.integers(), st.text(), st.none()))
def test_garbage_is_refused(garbage: object):
    with pytest.raises(FormatError):
        unpack(garbage, "QmA")


def test_the_peers_of_a_small_run_share_one_key_and_those_of_a_large_one_spread_over_many():
    run = RunId("ab" * 32)
    assert len(peers_keys(run, small_manifest())) == 1
    large = small_manifest(replicas={"groups": 500, "stages": 2, "datacenters": 24})
    keys = peers_keys(run, large)
    assert len(keys) == 16
    under = [peers_key(run, large, PeerId(f"Qm{number}")) for number in range(1024)]
    assert set(under) == set(keys)
    assert max(map(under.count, keys)) < 2 * RECORDS_UNDER_A_KEY
