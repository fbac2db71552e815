"""A real peer's folder is copied while the peer runs, as with a virtual machine's image, and started a second time."""

import asyncio
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path

from peer.network import admission
from protocol.events.activity import Failed, Joined, Progress
from protocol.trust.records import Peers
from protocol.trust.ticket import parse_ticket
from tests.system.test_restarts import Run


async def published(ticket: str) -> Peers:
    """The records that lie in the run's DHT now."""
    parsed = parse_ticket(ticket)
    return await admission.read_peers(parsed, await admission.fetch_descriptor(parsed))


def test_a_copy_of_a_running_peers_folder_does_not_start_until_the_peer_is_gone(tmp_path: Path):
    with ExitStack() as stack:
        run = Run(tmp_path, stack, datacenters=1, steps=20, rounds=200)
        original = run.start("center")
        original.wait_for(Joined)
        while not asyncio.run(published(run.ticket)):
            pass
        shutil.copytree(tmp_path / "center", tmp_path / "copy")
        copy = run.start("copy")
        refused = copy.wait_for(Failed)
        assert "this peer runs already, at 127.0.0.1:" in refused.message
        assert copy.process.wait(60) == refused.exit_code == 2
        original.wait_for(Progress, lambda event: "a copy of this peer's folder was started at" in event.doing)
        assert original.end(signal.SIGKILL) == -signal.SIGKILL  # it had not ended by itself
        moved = run.start("copy")  # the record of the one that was killed is still in the DHT
        moved.wait_for(Joined)
