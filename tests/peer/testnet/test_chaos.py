"""The notation of faults: what is read is what is written, and what is wrong is named with a right example."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.testnet.chaos import NOTATIONS, check_chaos, parse_chaos
from peer.testnet.faults import After, Fault, Join, Kill, Leave, Moment, Pause, Target, ends_a_datacenter
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
faults = (
    st.builds(Kill, targets, whens, st.none() | thousandths)
    | st.builds(Pause, targets, whens, thousandths)
    | st.builds(Leave, targets, whens)
    | st.builds(Join, st.none() | numbers, whens)
)


@given(st.lists(faults, min_size=1, max_size=5))
def test_what_is_written_reads_back(written: list[Fault]):
    assert parse_chaos(",".join(map(str, written)), NOTATIONS) == tuple(written)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill:stage=1@round=2.3+5s", Kill(Target("volunteer", 0, 1), Moment(2, 3), 5.0)),
        ("kill:all@round=2", Kill(Target("all"), Moment(2, 1), None)),
        ("kill:bootstrap@12.5s", Kill(Target("bootstrap"), After(12.5), None)),
        ("pause:datacenter=0@round=1+3s", Pause(Target("datacenter", 0), Moment(1), 3.0)),
        ("leave:group=1/stage=0@round=3", Leave(Target("volunteer", 1, 0), Moment(3))),
        ("join:stage=1@round=5", Join(1, Moment(5))),
        ("join:datacenter@round=5", Join(None, Moment(5))),
    ],
)
def test_each_form_means_this(text: str, fault: Fault):
    assert parse_chaos(text, NOTATIONS) == (fault,)


@pytest.mark.parametrize("kind", NOTATIONS)
def test_every_example_in_an_error_is_right(kind: str):
    (fault,) = parse_chaos(NOTATIONS[kind].example, NOTATIONS)
    assert type(fault).__name__.lower() == kind


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("", "'' is none of kill, pause, leave, join;"),
        ("explode:all@round=1", "is none of kill, pause, leave, join;"),
        ("attacker:garbage", "is none of kill, pause, leave, join;"),
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
    ],
)
def test_a_wrong_fault_is_named_with_a_right_one(item: str, words: str):
    with pytest.raises(UserError) as error:
        parse_chaos(f"kill:all@round=1,{item}", NOTATIONS)
    message = str(error.value)
    assert words in message
    assert repr(item) in message
    assert NOTATIONS.get(item.partition(":")[0], NOTATIONS["kill"]).example in message


@given(st.text())
def test_any_text_is_read_or_refused(text: str):
    try:
        parse_chaos(text, NOTATIONS)
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
        ("kill:all@round=0", "rounds are 1 to 6"),
        ("kill:all@round=1.21", "inner steps are 1 to 20"),
    ],
)
def test_what_this_swarm_has_not_is_named(spec: str, words: str):
    with pytest.raises(UserError, match=words):
        check_chaos(parse_chaos(spec, NOTATIONS), OPTIONS)


def test_what_this_swarm_has_is_accepted():
    examples = [notation.example for notation in NOTATIONS.values()]
    check_chaos(parse_chaos(",".join([*examples, "kill:all@round=6.20", "leave:bootstrap@9s"]), NOTATIONS), OPTIONS)


def test_there_are_no_faults_where_replicas_take_as_many_steps_as_they_can():
    with pytest.raises(UserError, match="leave --most-steps out"):
        check_chaos(parse_chaos("kill:all@round=1", NOTATIONS), replace(OPTIONS, most_steps=40))
    check_chaos((), replace(OPTIONS, most_steps=40))


@pytest.mark.parametrize(
    ("spec", "ends"),
    [
        ("kill:datacenter=0@round=1", True),
        ("leave:all@round=1", True),
        ("pause:datacenter=0@round=1+1s,kill:stage=0@round=1", False),
    ],
)
def test_who_evaluates_may_be_gone(spec: str, ends: bool):
    assert ends_a_datacenter(parse_chaos(spec, NOTATIONS)) is ends
