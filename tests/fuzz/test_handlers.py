"""Whatever a certified caller sends, or a newcomer at the door, handlers answer or refuse it; none raises anything
else. And whatever answers, who has asked goes on.

`HETPEER_FUZZ_SECONDS=600` goes on for so long with the calls, as `make fuzz` does.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.network.group import REPLICA_KEY
from protocol.net.channels import handshake
from protocol.schemas import pipeline_pb2 as pb
from protocol.schemas.blobs_pb2 import FetchRequest
from protocol.schemas.pipeline_pb2_grpc import PipelineStub
from tests.fuzz.hostile import MANIFEST, METHODS, Call, Town
from tests.fuzz.memory import resident
from tests.fuzz.town import town
from tests.reference.garbage import drop

SECONDS = float(os.environ.get("HETPEER_FUZZ_SECONDS", "0"))
AT_ONCE = 64
MIB = 2**20

every_method = pytest.mark.parametrize("path", METHODS)


class Here:
    """A town on a loop that runs whenever a test does something."""

    def __init__(self, runner: asyncio.Runner, town: Town) -> None:
        self.runner, self.town = runner, town
        self.ended: dict[str, Counter[str]] = {path: Counter() for path in METHODS}

    def attempt(self, call: Call) -> str:
        code = self.runner.run(self.town.attempt(call))
        self.ended[call.path][code.name] += 1
        return code.name


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    drop()  # `assert_up` looks for what complains as it is collected: not of earlier modules
    with asyncio.Runner() as runner:
        made = town(tmp_path_factory.mktemp("town"))
        yield Here(runner, runner.run(made.__aenter__()))
        runner.run(made.__aexit__(None, None, None))


@every_method
def test_a_hostile_call_is_answered_or_refused(here: Here, path: str):
    @settings(max_examples=40)
    @given(call=here.town.calls(path))
    def attempt(call: Call) -> None:
        here.attempt(call)

    ends = time.monotonic() + SECONDS / len(METHODS)
    attempt()
    while time.monotonic() < ends:
        attempt()
    here.runner.run(here.town.assert_up())
    assert sum(here.ended[path].values()) >= 40
    print(path, dict(here.ended[path]))


@every_method
def test_a_message_that_is_none_is_refused_as_an_empty_one(here: Here, path: str):
    for garbage in (b"\xff", b"\x0a\xff\xff\xff\xff\x07", b"\x07" * 1000):
        here.attempt(Call(path, [garbage], handshake(MANIFEST)))
    here.runner.run(here.town.assert_up())


def test_an_offset_beyond_a_file_is_its_end(here: Here):
    """The file would be sought at a place that no file has."""
    for piece in here.town.victim.outer.followed.snapshots.pieces:
        for offset in (2**31, 2**63, 2**64 - 1):
            for length in (0, 1, 2**64 - 1):
                request = FetchRequest(sha256=piece, offset=offset, length=length).SerializeToString()
                assert here.attempt(Call("/hetpeer.v1.Blobs/Fetch", [request], handshake(MANIFEST))) == "OK"


def test_a_replica_of_thousands_of_letters_is_none_that_anybody_is_in(here: Here):
    metadata = (*handshake(MANIFEST), (REPLICA_KEY, "9" * 5000))
    assert here.attempt(Call("/hetpeer.v1.Pipeline/Exchange", [], metadata)) == "FAILED_PRECONDITION"


def test_a_stage_that_speaks_as_it_should_is_heard_to_the_end(here: Here):
    """So that what is changed in what it says gets as far."""

    async def speak(offer: pb.Frame) -> list[str | None]:
        here.town.open_the_way("/hetpeer.v1.Pipeline/Exchange")
        metadata = (*handshake(MANIFEST), (REPLICA_KEY, here.town.before.id))
        stream = PipelineStub(here.town.link).Exchange(metadata=metadata, timeout=20)
        await stream.write(offer)
        heard = [await stream.read(), await stream.read()]
        stream.cancel()
        return [each.WhichOneof("kind") for each in heard]

    assert here.runner.run(speak(here.town.honest["/hetpeer.v1.Pipeline/Exchange"])) == ["seats", "answer"]
    here.runner.run(here.town.assert_up())


@settings(max_examples=5)
@given(data=st.data())
def test_many_hostile_calls_at_once_are_answered_or_refused(here: Here, data: st.DataObject):
    any_call = st.sampled_from(list(METHODS)).flatmap(here.town.calls)
    few = data.draw(st.lists(any_call, min_size=4, max_size=4))
    here.runner.run(here.town.attempt_all(few * (AT_ONCE // len(few))))
    here.runner.run(here.town.assert_up())


@every_method
def test_a_call_with_the_longest_message_leaves_no_more_behind(here: Here, path: str):
    before = resident()
    for size in (MIB - 100, 8 * MIB):  # the second is more than a message may have
        for _ in range(4):
            here.attempt(Call(path, [b"\x0a" + _varint(size) + bytes(size)], handshake(MANIFEST)))
    here.runner.run(here.town.assert_up())
    assert resident() - before < 64 * MIB


def _varint(number: int) -> bytes:
    said = b""
    while number > 127:
        said, number = said + bytes([number & 127 | 128]), number >> 7
    return said + bytes([number])
