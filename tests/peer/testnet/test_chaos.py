"""The notation of faults: what is read is what is written, and what is wrong is named with a right example."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.testnet.chaos import EXAMPLES, check_chaos, parse_chaos
from peer.testnet.faults import (
    After,
    Attacker,
    AttackKind,
    ChaosItem,
    Crowd,
    CrowdKind,
    Fault,
    Join,
    Kill,
    Leave,
    Moment,
    Partition,
    Pause,
    Random,
    Slow,
    Target,
    ends_a_datacenter,
    needs_namespaces,
)
from peer.testnet.testnet_options import TestnetOptions
from protocol.errors import UserError

OPTIONS = TestnetOptions("nano", groups=2, stages=2, datacenters=1, compression=8, rounds=6, inner_steps=20)

numbers = st.integers(0, 9999)
thousandths = st.integers(1, 600_000).map(lambda count: count / 1000)
moments = st.builds(Moment, st.integers(1, 999_999), st.integers(1, 999_999))
whens = moments | st.builds(After, thousandths)
targets = (
    st.builds(Target, st.just("volunteer"), numbers, numbers)
    | st.builds(Target, st.sampled_from(("group", "datacenter")), numbers)
    | st.builds(Target, st.sampled_from(("bootstrap", "all")))
)


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
faults = (
    st.builds(Kill, targets, whens, st.none() | thousandths)
    | st.builds(Pause, targets, whens, thousandths)
    | st.builds(Leave, targets, whens)
    | st.builds(Join, st.none() | numbers, whens)
    | partitions
    | st.builds(Crowd, st.sampled_from((*get_args(CrowdKind), "all")), st.integers(1, 200), whens, thousandths)
    | st.builds(Slow, targets, st.sampled_from(("1mbit", "250kbit", "2gbit")), whens, thousandths)
)
kinds = st.lists(st.sampled_from(("kill", "pause", "slow", "partition")), min_size=1, max_size=4).map(tuple)
randoms = st.builds(Random, st.integers(0, 10**9 - 1), thousandths, kinds)


attackers = st.sampled_from(get_args(AttackKind)).map(Attacker)


@given(st.lists(faults | randoms | attackers, min_size=1, max_size=5))
def test_what_is_written_reads_back(items: list[ChaosItem]):
    assert parse_chaos(",".join(map(str, items))) == tuple(items)


@pytest.mark.parametrize(
    ("text", "item"),
    [
        ("kill:stage=1@round=2.3+5s", Kill(Target("volunteer", 0, 1), Moment(2, 3), 5.0)),
        ("kill:all@round=2", Kill(Target("all"), Moment(2, 1), None)),
        ("pause:datacenter=0@round=1+3s", Pause(Target("datacenter", 0), Moment(1), 3.0)),
        ("leave:group=1/stage=0@round=3", Leave(Target("volunteer", 1, 0), Moment(3))),
        ("join:stage=1@round=5", Join(1, Moment(5))),
        ("join:datacenter@round=5", Join(None, Moment(5))),
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
    assert parse_chaos(text) == (item,)


@pytest.mark.parametrize("example", EXAMPLES.values())
def test_every_example_in_an_error_is_right(example: str):
    assert len(parse_chaos(example)) == 1


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("", "'' is none of kill, pause"),
        ("explode:all@round=1", "is none of kill, pause"),
        ("kill", "it lacks its moment"),
        ("kill:stage=1", "it lacks its moment"),
        ("kill:stage=1@round=", "something is wrong there"),
        ("kill:stage=1@round=1.+3s", "something is wrong there"),
        ("kill:stage=1@round=1+0s", "it may last up to 600 seconds, not 0"),
        ("kill:stage=1@round=1+601s", "it may last up to 600 seconds, not 601"),
        ("kill:stage1@round=1", "'stage1' names no process"),
        ("kill:group=1stage=1@round=1", "names no process"),
        ("kill:/stage=1@round=1", "names no process"),
        ("kill:group=1/@round=1", "names no process"),
        ("pause:stage=1@round=1", "it lacks how long it lasts"),
        ("leave:stage=1@round=1+3s", "it takes no +Ns"),
        ("join:bootstrap@round=1", "who joins is stage=S or datacenter"),
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
        parse_chaos(f"kill:all@round=1,{item}")
    message = str(error.value)
    assert words in message
    assert repr(item) in message
    assert EXAMPLES.get(item.partition(":")[0], EXAMPLES["kill"]) in message


@given(st.text())
def test_any_text_is_read_or_refused(text: str):
    try:
        parse_chaos(text)
    except UserError:
        return


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("kill:group=2@round=1", "there is no group 2: they are 0 to 1"),
        ("kill:stage=2@round=1", "there is no stage 2: they are 0 to 1"),
        ("pause:datacenter=1@round=1+1s", "there is no datacenter 1: they are 0 to 0"),
        ("join:stage=7@round=1", "there is no stage 7"),
        ("kill:all@round=7", "rounds are 1 to 6"),
        ("crowd:all*9@round=7+9s", "rounds are 1 to 6"),
        ("kill:all@round=0", "rounds are 1 to 6"),
        ("kill:all@round=1.21", "inner steps are 1 to 20"),
        ("partition:half@rounds=5-7", "there are 6 rounds"),
        ("partition:half|group=3@rounds=5-6", "names no process"),
        ("partition:all|group=3@rounds=5-6", "there is no group 3"),
    ],
)
def test_what_this_swarm_has_not_is_named(spec: str, words: str):
    with pytest.raises(UserError, match=words):
        check_chaos(parse_chaos(spec), OPTIONS)


def test_what_this_swarm_has_is_accepted():
    check_chaos(parse_chaos(",".join([*EXAMPLES.values(), "kill:all@round=6.20", "leave:bootstrap@9s"])), OPTIONS)


def test_there_are_no_faults_where_replicas_take_as_many_steps_as_they_can():
    with pytest.raises(UserError, match="leave --most-steps out"):
        check_chaos(parse_chaos("kill:all@round=1"), replace(OPTIONS, most_steps=40))
    check_chaos((), replace(OPTIONS, most_steps=40))


def test_random_faults_need_somebody_to_hit():
    alone = TestnetOptions("nano", groups=0, stages=1, datacenters=1, compression=8, rounds=6, inner_steps=20)
    with pytest.raises(UserError, match="there are none"):
        check_chaos(parse_chaos("random:1:1"), alone)


def test_one_replica_has_no_halves():
    alone = TestnetOptions("nano", groups=1, stages=2, datacenters=0, compression=8, rounds=6, inner_steps=20)
    with pytest.raises(UserError, match="there is one replica"):
        check_chaos(parse_chaos("partition:half@rounds=1"), alone)


@pytest.mark.parametrize(("kind", "fits"), [("garbage", False), ("scaled", True)])
def test_who_attacks_a_pipeline_needs_one(kind: str, fits: bool):
    whole = TestnetOptions("nano", groups=1, stages=1, datacenters=1, compression=1, rounds=6, inner_steps=20)
    attacker = parse_chaos(f"attacker:{kind}")
    if fits:
        check_chaos(attacker, whole)
    else:
        with pytest.raises(UserError, match="which takes two stages"):
            check_chaos(attacker, whole)


def test_there_is_one_attacker():
    with pytest.raises(UserError, match="one attacker at most"):
        check_chaos(parse_chaos("attacker:garbage,attacker:spam"), OPTIONS)


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
    assert needs_namespaces(parse_chaos(spec)) is needed


@pytest.mark.parametrize(
    ("spec", "ends"),
    [
        ("kill:datacenter=0@round=1", True),
        ("leave:all@round=1", True),
        ("pause:datacenter=0@round=1+1s,kill:stage=0@round=1", False),
    ],
)
def test_who_evaluates_may_be_gone(spec: str, ends: bool):
    assert ends_a_datacenter(parse_chaos(spec)) is ends


def test_faults_and_random_are_all_there_is():
    assert set(EXAMPLES) == {kind.__name__.lower() for kind in (*Fault.__args__, Random, Attacker)}
