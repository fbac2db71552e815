"""What it costs a peer to be watched: its log of events, metrics, log lines, live panel and dashboard, of its own time.

A datacenter replica takes inner steps on this machine's CPU and says so, as `peer/swarm/work.py` does, in blocks that
are in turn watched and not. Watched, the same listeners hear it as of a daemon: `events.jsonl` in a folder, metrics
that are asked for over HTTP, log lines, the panel on a pseudo-terminal, whose other end is read, and an operator's
node, which is told what this peer does, and whose dashboard somebody has open. Three numbers come out: how much longer
a step takes (the median over pairs of neighbouring blocks, as loads of the machine change), and which part of all CPU
time the listeners and the threads that draw, serve and tell take, which other work on the machine hardly changes; and
the share of a core that the node takes, for this peer and that page.
"""

import argparse
import contextlib
import json
import os
import pty
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before any import of grpc

import torch
from rich.console import Console
from rich.live import Live
from watched.node import Node, node, telling

from peer.compute.capacity import family_bytes
from peer.compute.replica import WholeReplica
from peer.swarm.presence import PULSE_SECONDS
from peer.telemetry.decisions import Placed, Pulse
from peer.telemetry.events import Event, Joined, Listener, RoundDone, StepDone
from peer.telemetry.journal import Journal, LogLines
from peer.telemetry.prometheus import Metrics, served
from peer.telemetry.status import EventStream, Status
from peer.telemetry.terminal import PeerScreen
from protocol.layout import model_layout
from protocol.manifest import Manifest, check_manifest

SCRAPE_SECONDS = 15.0
"""Prometheus' usual interval."""


@dataclass(frozen=True, slots=True)
class Result:
    """`slower`: steps of watched blocks take so much longer, as a share; `cpu`: watching's part of all CPU time;
    `node`: the share of a core that the operator's node took meanwhile."""

    preset: str
    step_seconds: float
    slower: float
    cpu: float
    node: float
    aim: float = 0.01


@contextlib.contextmanager
def watchers(folder: Path, manifest: Manifest, node: Node) -> Iterator[tuple[Listener, Callable[[], Live], str]]:
    """All that a daemon can have; its panel, once it is there; and the URL of its metrics."""
    master, slave = pty.openpty()
    reading = threading.Thread(target=drain, args=(master,), daemon=True)
    reading.start()
    status = Status()
    metrics = Metrics(status, family_bytes)
    with ExitStack() as stack:
        terminal = stack.enter_context(os.fdopen(slave, "w"))
        sink = stack.enter_context((folder / "stderr").open("w"))
        stack.enter_context(contextlib.redirect_stderr(sink))
        url = stack.enter_context(served(metrics.registry, "0"))
        screen = PeerScreen(status, Console(file=terminal, highlight=False, soft_wrap=True, force_terminal=True))
        stack.callback(screen.close)

        def panel() -> Live:
            assert screen._panel is not None
            return screen._panel

        listeners = EventStream([screen, Journal(folder, screen, status), LogLines(status), metrics], status)
        yield stack.enter_context(telling(manifest, node, listeners)), panel, url


def drain(master: int) -> None:
    """Read what is drawn, as a terminal does."""
    with contextlib.suppress(OSError):
        while os.read(master, 65536):
            pass


@dataclass(slots=True)
class Peer:
    """A replica that trains and says so. `said` is the CPU time that its listeners took of its own thread."""

    manifest: Manifest
    replica: WholeReplica
    batch_SM: torch.Tensor
    step: int = 0
    said: float = 0.0
    pulsed: float = 0.0

    def block(self, emit: Listener, steps: int) -> float:
        """Train for so many steps; seconds a step."""
        began = time.perf_counter()
        for _ in range(steps):
            loss = self.replica.inner_step(self.batch_SM, self.step)
            self.step += 1
            round, step = divmod(self.step, self.manifest.inner.steps)
            events: list[Event] = [StepDone(round + 1, step, loss, self.manifest.tokens_per_step)]
            if step == 0:
                parts = dict.fromkeys(map(str, model_layout(self.manifest)), "ab" * 32)
                events.append(RoundDone(round, 1.0, 1, dict.fromkeys(parts, 2), parts, 1, 1))
            if time.monotonic() - self.pulsed > PULSE_SECONDS:
                self.pulsed = time.monotonic()
                events.append(Pulse(self.step, self.step, self.step, self.step, 8, 0))
            before = time.thread_time()
            for event in events:
                emit(event)
            self.said += time.thread_time() - before
        return (time.perf_counter() - began) / steps


def manifest_of(preset: str) -> Manifest:
    inner = {"sequences": 4, "microbatch": 2, "steps": 20}
    return check_manifest({"model": {"preset": preset}, "inner": inner, "replicas": {"stages": 2, "groups": 0}})


def peer_of(manifest: Manifest) -> Peer:
    replica = WholeReplica(manifest, "datacenter", None, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    grids = {
        part: {
            name: torch.randint(-(2**20), 2**20, shape, generator=generator, dtype=torch.int32)
            for name, shape in layout.items()
        }
        for part, layout in model_layout(manifest).items()
    }
    replica.load(grids)
    width = manifest.model.context + 1
    batch = torch.randint(0, manifest.model.vocabulary, (manifest.inner.sequences, width), generator=generator)
    return Peer(manifest, replica, batch)


@dataclass(slots=True)
class Spent:
    """CPU seconds of some blocks: of all, and of those beside training: of other threads, and of listening."""

    all: float = 0.0
    beside: float = 0.0

    @contextlib.contextmanager
    def counting(self, peer: Peer) -> Iterator[None]:
        """Of the block."""
        process, thread, said = time.process_time(), time.thread_time(), peer.said
        yield
        process, thread = time.process_time() - process, time.thread_time() - thread
        self.all += process
        self.beside += process - thread + peer.said - said

    @property
    def share(self) -> float:
        return self.beside / self.all


def measure(preset: str, pairs: int, steps: int) -> Result:
    manifest = manifest_of(preset)
    with tempfile.TemporaryDirectory() as folder, node(manifest, Path(folder)) as operators:
        return measure_beside(operators, Path(folder), peer_of(manifest), preset, pairs, steps)


def measure_beside(node: Node, folder: Path, peer: Peer, preset: str, pairs: int, steps: int) -> Result:
    peer.block(lambda event: None, steps)  # warm
    ratios, seconds, bare, watched = [], [], Spent(), Spent()
    with watchers(folder, peer.manifest, node) as (emit, panel, url):
        emit(Joined("Qm" + "A" * 44, "datacenter", 0, 0, "127.0.0.1:1"))
        emit(Placed(0, 100, peer.manifest.inner.steps, "datacenters hold all stages"))
        began = scraped = time.monotonic()
        before, _ = node.spent()
        for _ in range(pairs):
            panel().stop()
            with bare.counting(peer):
                seconds.append(peer.block(lambda event: None, steps))
            panel().start()
            with watched.counting(peer):
                ratios.append(peer.block(emit, steps) / seconds[-1])
                if time.monotonic() - scraped > SCRAPE_SECONDS:
                    scraped = time.monotonic()
                    urllib.request.urlopen(url, timeout=10).read()
        spent, told = node.spent()
        share = (spent - before) / (time.monotonic() - began)
    if not told:
        raise RuntimeError("the node was told nothing")
    slower = statistics.median(ratios) - 1
    return Result(preset, statistics.median(seconds), slower, watched.share - bare.share, share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["nano", "micro"], help="models; the smallest is the worst")
    parser.add_argument("--pairs", type=int, default=20, help="of blocks, one watched and one not")
    parser.add_argument("--steps", type=int, default=10, help="inner steps of a block")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)  # so that every other thread's time is watching's
    results = [measure(preset, options.pairs, options.steps) for preset in options.presets]
    if options.json:
        print(json.dumps({"watching": [asdict(each) for each in results]}))
        return
    print("model      a step (ms)   longer   of CPU time   aim   the node, of a core")
    for each in results:
        shares = f"{each.slower:8.2%} {each.cpu:13.2%} {each.aim:5.0%} {each.node:21.2%}"
        print(f"{each.preset:10} {1000 * each.step_seconds:11.1f} {shares}")


if __name__ == "__main__":
    sys.exit(main())
