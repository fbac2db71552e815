"""What the operator's node tells its operator of the run."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from bootstrap.monitor.run_state import RunStatus
from peer.cli.bootstrap import emit_state, is_muon_alone
from protocol.events.activity import Progress
from protocol.events.event import Event
from protocol.manifest import check_manifest
from protocol.net.tasks import Children, Notifier

GATHERING = "waits for 1 datacenter (0 of 1)"


@dataclass
class Seen:
    """A monitor whose run has a state, and which says that it has changed."""

    run_state: RunStatus
    news: Notifier = field(default_factory=Notifier)

    async def until_changed(self, seconds: float) -> None:
        await self.news.wait(seconds)


def test_the_operator_is_told_each_state_and_reason_once_and_from_when_the_node_is_up():
    told: list[Event] = []

    async def scene() -> None:
        up: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        stop, heard = asyncio.Event(), Notifier()
        monitor = Seen(RunStatus("gathering", GATHERING, 0.0))

        def emit(event: Event) -> None:
            told.append(event)
            heard.ring()

        async with Children() as children:
            telling = children.spawn(emit_state(monitor, emit, up, stop))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            assert not told
            up.set_result(None)
            for count, found in enumerate(
                (monitor.run_state, RunStatus("training", "", 1.0), RunStatus("finished", "", 2.0)), 1
            ):
                monitor.run_state = found
                monitor.news.ring()
                await heard.until(lambda count=count: len(told) == count)
                monitor.news.ring()  # nothing new
            stop.set()
            await telling

    asyncio.run(scene())
    assert told == [
        Progress(f"The run is gathering: {GATHERING}"),
        Progress("The run is training"),
        Progress("The run is finished"),
    ]


def test_a_node_that_is_stopped_before_it_is_up_tells_nothing_and_ends():
    async def scene() -> None:
        stop = asyncio.Event()
        stop.set()
        up: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(10):
            await emit_state(Seen(RunStatus("gathering", "", 0.0)), lambda event: None, up, stop)  # type: ignore[arg-type]
        assert not up.cancelled()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("optimizer", "compression", "stages", "datacenters", "alone"),
    [
        ("muon", 8, 2, 0, True),
        ("adamw", 8, 2, 0, False),
        ("muon", 1, 2, 0, False),
        ("muon", 8, 1, 0, False),
        ("muon", 8, 2, 1, False),
    ],
)
def test_muon_among_volunteers_alone_is_warned_of(
    optimizer: str, compression: int, stages: int, datacenters: int, alone: bool
):
    manifest = check_manifest(
        {
            "model": {"preset": "nano"},
            "replicas": {"groups": 1, "datacenters": datacenters, "stages": stages, "compression": compression},
            "inner": {"optimizer": optimizer},
        }
    )
    assert is_muon_alone(manifest) == alone
    if optimizer == "muon":
        within = manifest.inner.model_copy(update={"subspace_steps": True})
        assert not is_muon_alone(manifest.model_copy(update={"inner": within}))
