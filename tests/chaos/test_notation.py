"""The harness reads what it writes, beside the faults of `hetpeer testnet`, and names what is wrong."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.testnet.chaos import parse_chaos
from peer.testnet.faults import After, Moment, Target
from peer.testnet.testnet_options import TestnetOptions
from protocol.errors import UserError
from tests.chaos.faults import (
    Attacker,
    AttackKind,
    ChaosItem,
    Crowd,
    CrowdKind,
    Partition,
    Random,
    Slow,
    needs_namespaces,
)
from tests.chaos.notation import ALL_NOTATIONS, check_items

OPTIONS = TestnetOptions("nano", groups=2, stages=2, datacenters=1, compression=8, rounds=6, inner_steps=20)

numbers = st.integers(0, 9999)
thousandths = st.integers(1, 600_000).map(lambda count: count / 1000)
whens = st.builds(Moment, st.integers(1, 999_999), st.integers(1, 999_999)) | st.builds(After, thousandths)
targets = (
    st.builds(Target, st.just("volunteer"), numbers, numbers)
    | st.builds(Target, st.sampled_from(("group", "datacenter")), numbers)
    | st.builds(Target, st.sampled_from(("bootstrap", "all")))
)


def parsed(spec: str) -> tuple[ChaosItem, ...]:
    return parse_chaos(spec, ALL_NOTATIONS)


def two_sides() -> st.SearchStrategy[object]:
    def cut(named: list[Target]) -> tuple[tuple[Target, ...], tuple[Target, ...]]:
        return tuple(named[: len(named) // 2]), tuple(named[len(named) // 2 :])

    return st.none() | st.lists(targets, min_size=2, max_size=6, unique=True).map(cut)


partitions = st.builds(
    lambda sides, first, more: Partition(sides, Moment(first), last=first + more),
    two_sides(),
    st.integers(1, 1000),
    st.integers(0, 1000),
) | st.builds(lambda sides, when, seconds: Partition(sides, when, seconds=seconds), two_sides(), whens, thousandths)
items = (
    partitions
    | st.builds(Crowd, st.sampled_from((*get_args(CrowdKind), "all")), st.integers(1, 200), whens, thousandths)
    | st.builds(Slow, targets, st.sampled_from(("1mbit", "250kbit", "2gbit")), whens, thousandths)
    | st.builds(
        Random,
        st.integers(0, 10**9 - 1),
        thousandths,
        st.lists(st.sampled_from(("kill", "pause", "slow", "partition")), min_size=1, max_size=4).map(tuple),
    )
    | st.sampled_from(get_args(AttackKind)).map(Attacker)
)


@given(st.lists(items, min_size=1, max_size=5))
def test_what_is_written_reads_back(written: list[ChaosItem]):
    assert parsed(",".join(map(str, written))) == tuple(written)


@pytest.mark.parametrize(
    ("text", "item"),
    [
        (
            "partition:group=0|group=1+datacenter=0@rounds=2-3",
            Partition(((Target("group", 0),), (Target("group", 1), Target("datacenter", 0))), Moment(2), last=3),
        ),
        ("partition:half@rounds=2", Partition(None, Moment(2), last=2)),
        ("partition:half@12.5s+4s", Partition(None, After(12.5), seconds=4.0)),
        ("slow:bootstrap=1mbit@round=2+10s", Slow(Target("bootstrap"), "1mbit", Moment(2), 10.0)),
        ("slow:stage=1=1mbit@round=2+10s", Slow(Target("volunteer", 0, 1), "1mbit", Moment(2), 10.0)),
        ("random:7:6", Random(7, 6.0)),
        ("attacker:loris", Attacker("loris")),
        ("crowd:clock*2@round=2+20s", Crowd("clock", 2, Moment(2), 20.0)),
        ("crowd:all*100@5s+300s", Crowd("all", 100, After(5.0), 300.0)),
        ("random:7:0.5:kill+pause", Random(7, 0.5, ("kill", "pause"))),
    ],
)
def test_each_form_means_this(text: str, item: ChaosItem):
    assert parsed(text) == (item,)


@pytest.mark.parametrize("kind", ALL_NOTATIONS)
def test_every_example_in_an_error_is_right(kind: str):
    (item,) = parsed(ALL_NOTATIONS[kind].example)
    assert type(item).__name__.lower() == kind


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("explode:all@round=1", "is none of kill, pause, leave, join, partition, slow, random, attacker, crowd;"),
        ("partition:stage=1@rounds=1-2", "a partition has two sides"),
        ("partition:all|all@rounds=1-2", "nobody can be on both sides"),
        ("partition:half@rounds=3-2", "rounds 3 to 2 are none"),
        ("slow:stage=1@round=1+3s", "a rate is a whole number"),
        ("slow:stage=1=fast@round=1+3s", "a rate is a whole number"),
        ("random:7", "it takes a seed, how many faults a minute"),
        ("random:7:0", "it takes a seed, how many faults a minute"),
        ("attacker:flowers", "attacks are garbage, shapes"),
        ("attacker:loris@round=1", "attacks are garbage, shapes"),
        ("crowd:flowers*2@round=1+5s", "crowds are clock, spam"),
        ("crowd:clock@round=1+5s", "it has 1 to 200 names, as in clock*2"),
        ("crowd:clock*201@round=1+5s", "it has 1 to 200 names, as in clock*2"),
        ("crowd:clock*2@round=1", "it lacks how long it lasts"),
        ("random:7:6:join", "random faults are kill, pause, slow and partition, not 'join'"),
    ],
)
def test_a_wrong_item_is_named_with_a_right_one(item: str, words: str):
    with pytest.raises(UserError) as error:
        parsed(f"kill:all@round=1,{item}")
    message = str(error.value)
    assert words in message
    assert repr(item) in message
    assert ALL_NOTATIONS.get(item.partition(":")[0], ALL_NOTATIONS["kill"]).example in message


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("kill:group=2@round=1", "there is no group 2: they are 0 to 1"),
        ("crowd:all*9@round=7+9s", "rounds are 1 to 6"),
        ("slow:stage=2=1mbit@round=1+1s", "there is no stage 2"),
        ("partition:half@rounds=5-7", "there are 6 rounds"),
        ("partition:half|group=3@rounds=5-6", "names no process"),
        ("partition:all|group=3@rounds=5-6", "there is no group 3"),
    ],
)
def test_what_this_swarm_has_not_is_named(spec: str, words: str):
    with pytest.raises(UserError, match=words):
        check_items(parsed(spec), OPTIONS)


def test_what_this_swarm_has_is_accepted():
    check_items(parsed(",".join(notation.example for notation in ALL_NOTATIONS.values())), OPTIONS)


def test_random_faults_need_somebody_to_hit():
    alone = TestnetOptions("nano", groups=0, stages=1, datacenters=1, compression=8, rounds=6, inner_steps=20)
    with pytest.raises(UserError, match="there are none"):
        check_items(parsed("random:1:1"), alone)


def test_one_replica_has_no_halves():
    alone = TestnetOptions("nano", groups=1, stages=2, datacenters=0, compression=8, rounds=6, inner_steps=20)
    with pytest.raises(UserError, match="there is one replica"):
        check_items(parsed("partition:half@rounds=1"), alone)


@pytest.mark.parametrize(("kind", "fits"), [("garbage", False), ("scaled", True)])
def test_who_attacks_a_pipeline_needs_one(kind: str, fits: bool):
    whole = TestnetOptions("nano", groups=1, stages=1, datacenters=1, compression=1, rounds=6, inner_steps=20)
    attacker = parsed(f"attacker:{kind}")
    if fits:
        check_items(attacker, whole)
    else:
        with pytest.raises(UserError, match="which takes two stages"):
            check_items(attacker, whole)


def test_there_is_one_attacker():
    with pytest.raises(UserError, match="one attacker at most"):
        check_items(parsed("attacker:garbage,attacker:spam"), OPTIONS)


@pytest.mark.parametrize(
    ("spec", "needed"),
    [
        ("kill:all@round=1,random:1:1:kill+pause", False),
        ("partition:half@rounds=1", True),
        ("slow:all=1mbit@round=1+1s", True),
        ("random:1:1:kill+slow", True),
    ],
)
def test_links_alone_need_namespaces(spec: str, needed: bool):
    assert needs_namespaces(parsed(spec)) is needed
