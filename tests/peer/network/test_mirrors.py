"""Blocks from mirrors over real HTTP: whatever a mirror does, what comes is the block, or nothing."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pytest

from peer.network import mirrors as mirrors_module
from peer.network import web
from peer.network.mirrors import BlockSource, HttpMirror, Mirrors
from peer.network.web import Client
from protocol.addresses import Ip
from protocol.errors import FormatError, HetpeerError, RefusedError, UnreachableError
from protocol.events.activity import Progress
from protocol.events.event import Event
from protocol.net.bandwidth import Bandwidth
from protocol.run.dataset import Block, Dataset
from protocol.run.prepared import open_folder, read_block
from tests.reference.mirror import Fault, Mirror, mirror
from tests.reference.prepared import small_prepared

FAULTS: tuple[Fault, ...] = get_args(Fault)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_prepared(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def dataset(folder: Path) -> Dataset:
    return open_folder(folder)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stall is one after a third of a second."""
    monkeypatch.setattr(web, "WEB_STALL_SECONDS", 0.3)
    monkeypatch.setattr(mirrors_module, "FIRST_PAUSE_SECONDS", 0.05)


def anywhere(ip: Ip) -> bool:
    """This machine's owner has given --private-mirrors."""
    return True


@dataclass
class Asking:
    """A peer that asks mirrors, and what it has been told."""

    mirrors: Mirrors
    said: list[str] = field(default_factory=list)
    waits: asyncio.Event = field(default_factory=asyncio.Event)


def ask(urls: Sequence[str], patience: float, work: Callable[[Asking], Awaitable[object]]) -> object:
    """Do some work with mirrors that have these addresses."""

    async def run() -> object:
        async with Client(anywhere) as client:
            sources: list[BlockSource] = [HttpMirror(url, client, Bandwidth()) for url in urls]

            async def known() -> Sequence[BlockSource]:
                return sources

            def hear(event: Event) -> None:
                assert isinstance(event, Progress)
                asking.said.append(event.doing)
                if "trying again" in event.doing:
                    asking.waits.set()

            asking = Asking(Mirrors(known, hear, patience))
            return await work(asking)

    return asyncio.run(run())


@pytest.fixture
def served(folder: Path) -> Iterator[list[Mirror]]:
    """Two mirrors."""
    with ExitStack() as stack:
        yield [stack.enter_context(mirror(folder)) for _ in range(2)]


def test_every_block_comes_as_it_was_prepared(folder: Path, dataset: Dataset, served: list[Mirror]) -> None:
    async def work(asking: Asking) -> None:
        for number in range(dataset.blocks):
            block = dataset.block(number)
            assert await asking.mirrors.fetch(block) == read_block(folder, block)

    ask([each.url for each in served], 1.0, work)
    assert sum(len(each.asked) for each in served) == dataset.blocks
    block = dataset.block(0)
    assert (block.shard, block.offset, block.offset + block.size - 1) in [*served[0].asked, *served[1].asked]


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_one_mirror_does_the_other_gives_the_block(
    folder: Path, dataset: Dataset, served: list[Mirror], fault: Fault
) -> None:
    served[0].fault = fault

    async def work(asking: Asking) -> list[str]:
        for number in range(6):
            block = dataset.block(number)
            assert await asking.mirrors.fetch(block) == read_block(folder, block)
        return asking.said

    said = ask([each.url for each in served], 5.0, work)
    assert len(served[1].asked) == 6
    assert len(served[0].asked) <= 1, "who failed is not asked again at once"
    assert said == [] or (len(said) == 1 and served[0].url in said[0])  # type: ignore[arg-type]


ALONE: dict[Fault, tuple[type[HetpeerError], str]] = {
    "wrong bytes": (UnreachableError, "other bytes than were prepared"),
    "short": (UnreachableError, "came with"),
    "long": (UnreachableError, "more than"),
    "whole file": (UnreachableError, "knows no ranges"),
    "stall": (UnreachableError, "stalls"),
    "error": (UnreachableError, "answers 503"),
    "other range": (UnreachableError, "another range"),
    "hang up": (UnreachableError, "RemoteProtocolError"),
    "gone": (UnreachableError, r"answers 404 to train-00000\.bin"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_with_a_bad_mirror_alone_the_error_says_what_is_wrong(
    dataset: Dataset, served: list[Mirror], fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault != "stall":  # on a busy machine any mirror may be silent for a third of a second
        monkeypatch.setattr(web, "WEB_STALL_SECONDS", 30.0)
    served[0].fault = fault
    kind, words = ALONE[fault]
    with pytest.raises(kind, match=words) as raised:
        ask([served[0].url], 0.0, lambda asking: asking.mirrors.fetch(dataset.block(0)))
    assert served[0].url in str(raised.value)


def test_a_mirror_that_mends_itself_is_waited_for(folder: Path, dataset: Dataset, served: list[Mirror]) -> None:
    served[0].fault = "error"

    async def work(asking: Asking) -> bytes:
        fetching = asyncio.create_task(asking.mirrors.fetch(dataset.block(0)))
        await asking.waits.wait()
        served[0].fault = None
        return await fetching

    assert ask([served[0].url], 30.0, work) == read_block(folder, dataset.block(0))


def test_a_mirror_where_nobody_listens_is_passed_over(folder: Path, dataset: Dataset, served: list[Mirror]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        silent = f"http://127.0.0.1:{closed.getsockname()[1]}/text"
    found = ask([silent, served[0].url], 5.0, lambda asking: asking.mirrors.fetch(dataset.block(0)))
    assert found == read_block(folder, dataset.block(0))


def test_a_mirror_may_say_where_its_files_are_now(folder: Path, dataset: Dataset, served: list[Mirror]) -> None:
    """As the Hugging Face hub does. Where that leads nowhere, it is no mirror."""
    moved, loop = (served[0].url.replace("/text", each) for each in ("/moved", "/loop"))
    block = dataset.block(2)
    assert ask([moved], 1.0, lambda asking: asking.mirrors.fetch(block)) == read_block(folder, block)
    with pytest.raises(UnreachableError, match="redirects more than 5 times"):
        ask([loop], 0.0, lambda asking: asking.mirrors.fetch(block))


def test_without_any_mirror_nobody_waits(dataset: Dataset) -> None:
    with pytest.raises(UnreachableError, match="no mirrors"):
        ask([], 300.0, lambda asking: asking.mirrors.fetch(dataset.block(0)))


class Scripted:
    """A source in memory, for what a server cannot show: who is asked, and in which order."""

    def __init__(self, name: str, asked: list[str], data: Callable[[Block], bytes], last: bool = False) -> None:
        self.name, self.asked, self.data, self.last = name, asked, data, last

    async def fetch(self, block: Block) -> bytes:
        self.asked.append(self.name)
        return self.data(block)


def test_the_operators_node_is_asked_when_no_mirror_gives_a_block(folder: Path, dataset: Dataset) -> None:
    asked: list[str] = []

    def refuse(block: Block) -> bytes:
        raise RefusedError("no")

    async def run() -> None:
        good = Scripted("mirror", asked, lambda block: read_block(folder, block))
        node = Scripted("node", asked, lambda block: read_block(folder, block), last=True)

        async def known() -> Sequence[BlockSource]:
            return [node, good]

        brought = Mirrors(known, lambda event: None)
        for number in range(3):
            await brought.fetch(dataset.block(number))
        assert asked == ["mirror"] * 3
        good.data = refuse
        await brought.fetch(dataset.block(3))
        await brought.fetch(dataset.block(4))
        assert asked[3:] == ["mirror", "node", "node"]

    asyncio.run(run())


def test_more_than_was_asked_for_is_not_read(served: list[Mirror], dataset: Dataset) -> None:
    """A mirror that would send without end costs no memory."""
    served[0].fault = "long"

    async def run() -> None:
        async with Client(anywhere) as client:
            await HttpMirror(served[0].url, client, Bandwidth()).fetch(dataset.block(0))

    with pytest.raises(FormatError, match="more than"):
        asyncio.run(run())
