"""The report of a run, made from what its processes said; and whether the run was a success. Pure."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.events import Evaluated, Event, Joined, Listener, RoundDone
from protocol.atomic import write_atomically
from protocol.manifest import Manifest

COMPLETED = "completed"


@dataclass(slots=True)
class RoundEntry:
    """What is known of one round. `done` is by process; `digests` by part, then peer."""

    done: dict[str, RoundDone] = field(default_factory=dict)
    digests: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    evaluated: Evaluated | None = None


@dataclass(slots=True)
class Report:
    """Built event by event. Processes have names; the peer id of each is in its `Joined`."""

    manifest: Manifest
    rounds: dict[int, RoundEntry] = field(default_factory=lambda: defaultdict(RoundEntry))
    joined: dict[str, Joined] = field(default_factory=dict)
    failure: str | None = None

    def take(self, process: str, event: Event) -> None:
        """Hear what a process said."""
        match event:
            case Joined():
                self.joined[process] = event
            case RoundDone():
                entry = self.rounds[event.round]
                entry.done[process] = event
                for part, digest in event.digests.items():
                    entry.digests[part][self._peer(process)] = digest
            case Evaluated():
                self.rounds[event.round].evaluated = event
            case _:
                pass

    def listener(self, process: str) -> Listener:
        """`take` for one process."""
        return lambda event: self.take(process, event)

    def _peer(self, process: str) -> str:
        return self.joined[process].peer_id if process in self.joined else process

    def verdict(self) -> str:
        """`completed`, or what was wrong: a round is missing, digests differ, or the loss did not fall."""
        return self.failure or next(self._faults(), COMPLETED)

    def _faults(self) -> Iterator[str]:
        for round in range(1, self.manifest.outer.rounds + 1):
            entry = self.rounds.get(round, RoundEntry())
            missing = sorted(self.joined.keys() - entry.done.keys())
            if missing or not entry.done:
                yield f"round {round} was not completed by {', '.join(missing) or 'anybody'}"
            for part, digests in entry.digests.items():
                if len(set(digests.values())) > 1:
                    yield f"after round {round} the peers of {part} hold {len(set(digests.values()))} different states"
            if entry.evaluated is None:
                yield f"round {round} was not evaluated"
        losses = self.losses()
        if len(losses) > 1 and not losses[-1].loss < losses[0].loss:
            yield f"the loss did not fall: {losses[0].loss:.3f} after round 1, {losses[-1].loss:.3f} at the end"

    def losses(self) -> list[Evaluated]:
        """The evaluations, by round."""
        return [entry.evaluated for _, entry in sorted(self.rounds.items()) if entry.evaluated is not None]

    @property
    def tokens(self) -> int:
        """Tokens that all replicas trained on."""
        return sum(done.tokens for entry in self.rounds.values() for done in entry.done.values())

    @property
    def seconds(self) -> float:
        """Time of all rounds, each as long as its slowest process took."""
        return sum(_seconds(entry) for entry in self.rounds.values())

    def result(self) -> dict[str, Any]:
        """What `report.json` holds."""
        last = self.rounds[max(self.rounds)] if self.rounds else RoundEntry()
        peers = {self._peer(process): _bytes(done) for process, done in last.done.items()}
        return {
            "run": self.manifest.model_dump(mode="json"),
            "rounds": [_row(round, entry) for round, entry in sorted(self.rounds.items())],
            "digests": {part: dict(digests) for part, digests in sorted(last.digests.items())},
            "bytes": {
                "pipeline_sent": sum(each["pipeline_sent"] for each in peers.values()),
                "outer_sent": sum(each["outer_sent"] for each in peers.values()),
                "peers": peers,
            },
            "tokens_per_second": self.tokens / self.seconds if self.seconds else 0.0,
            "outcome": self.verdict(),
        }

    def write(self, path: Path) -> None:
        """Write `report.json`, and `loss.png` beside it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(self.result(), indent=2) + "\n").encode())
        if self.losses():
            plot(self, path.with_name("loss.png"))


def _row(number: int, entry: RoundEntry) -> dict[str, Any]:
    contributions: dict[str, int] = {}
    for done in entry.done.values():
        contributions |= done.contributions
    return {
        "round": number,
        "loss": entry.evaluated.loss if entry.evaluated else None,
        "loss_plain": entry.evaluated.loss_plain if entry.evaluated else None,
        "tokens": sum(done.tokens for done in entry.done.values()),
        "seconds": round(_seconds(entry), 3),
        "contributions": dict(sorted(contributions.items())),
    }


def _seconds(entry: RoundEntry) -> float:
    return max((done.seconds for done in entry.done.values()), default=0.0)


def _bytes(done: RoundDone) -> dict[str, int]:
    return {"pipeline_sent": done.pipeline_sent, "outer_sent": done.outer_sent}


def plot(report: Report, path: Path) -> None:
    """Draw held-out loss over rounds: through the boundaries, and plain."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    losses, replicas = report.losses(), report.manifest.replicas
    rounds = [each.round for each in losses]
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    through = "through the boundaries" if report.manifest.compressed else "through the wire's number format"
    axes.plot(rounds, [each.loss for each in losses], "o-", color="#c2410c", label=through)
    axes.plot(rounds, [each.loss_plain for each in losses], "s--", color="#1d4ed8", label="plain")
    axes.set(
        xlabel=f"outer round (H = {report.manifest.inner.steps} inner steps)", ylabel="held-out loss, nats per token"
    )
    axes.set_title(
        f"{replicas.groups} groups × {replicas.stages} stages at k = d/{replicas.compression}"
        f" + {replicas.datacenters} datacenter replicas"
    )
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
