"""A peer that is killed at any of its writes, and started again: as one that was not."""

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from peer.swarm.rounds.catch_up import catch_up
from protocol.errors import ResourceError
from tests.peer.swarm.rounds.test_outer_round import MANIFEST
from tests.reference.loopback_peers import LoopbackPeer, village

BEFORE = 5
"""Rounds that are over before the one with the crash: at its end the second is closed."""


class Power:
    """Fails at one write of a folder, and at all that come after it: what is written later never was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.left, self.writes = "", 0, 0
        replace = os.replace

        def counted(source: Any, target: Any, **others: Any) -> None:
            if self.folder and str(target).startswith(self.folder):
                self.writes += 1
                if self.writes > self.left:
                    raise OSError("the power has failed")
            replace(source, target, **others)

        monkeypatch.setattr(os, "replace", counted)
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # the machine stays on, and this is slow

    def on(self, folder: Path, left: int = 10**6) -> None:
        self.folder, self.left, self.writes = f"{folder}/", left, 0

    @property
    def failed(self) -> bool:
        return self.writes > self.left


async def last_round(peer: LoopbackPeer, other: LoopbackPeer) -> None:
    """As after a start: catch up with the other, contribute unless that was done before, and finish the round."""
    meet(peer, other)
    await catch_up(peer.outer)
    if not peer.outer.contributed:
        await peer.contribute(BEFORE + 1, 77)
    await peer.outer.reconciler.compare(other.outer.discovery.record)
    await peer.at(BEFORE + 1)


def meet(one: LoopbackPeer, other: LoopbackPeer) -> None:
    one.outer.discovery.meet(other.outer.discovery.record, in_person=True)
    other.outer.discovery.meet(one.outer.discovery.record, in_person=True)


def test_a_crash_at_any_write_of_a_round_leaves_what_the_next_start_goes_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    power = Power(monkeypatch)

    async def run() -> None:
        async with village(MANIFEST, tmp_path, "a", "b") as made:
            for round in range(1, BEFORE + 1):
                await made.round(round, made.peers)
            a, b = made.peers
            await made.leave(a)
            await b.contribute(BEFORE + 1, 5)

            async def again(name: str) -> LoopbackPeer:
                made.slots[name] = made.slots["a"]
                return await made.start(name)

            async def gone(peer: LoopbackPeer) -> None:
                for task in peer.outer.reconciler.tasks:
                    task.cancel()
                await peer.server.stop(None)

            shutil.copytree(tmp_path / "a", tmp_path / "whole")
            power.on(tmp_path / "whole")
            whole = await again("whole")
            await last_round(whole, b)
            writes, expected = power.writes, whole.digests()
            sent = {part: each.own[BEFORE + 1] for part, each in whole.outer.followed.parts.items()}
            assert whole.intake.ledgers["embedding"].folded == 2
            await gone(whole)
            assert writes > 15
            for left in range(writes):
                folder = tmp_path / f"after-{left}"
                shutil.copytree(tmp_path / "a", folder)
                power.on(folder, left)
                with suppress(ResourceError):
                    killed = await again(folder.name)
                    with suppress(ResourceError):
                        await last_round(killed, b)
                    await gone(killed)
                assert power.failed, left
                power.on(folder)
                started = await again(folder.name)
                await last_round(started, b)
                assert started.digests() == expected, left
                assert {part: each.own[BEFORE + 1] for part, each in started.outer.followed.parts.items()} == sent, left
                await gone(started)
                shutil.rmtree(folder)

    asyncio.run(run())
