"""The report of a run, made from what its processes said; and whether the run was a success. Pure."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from protocol.events.activity import Evaluated, Finished, Joined, RoundDone
from protocol.events.decisions import Audited, Suspected
from protocol.events.event import Event, Listener
from protocol.events.lines import to_plain
from protocol.files import write_atomically
from protocol.manifest import Manifest

COMPLETED = "completed"

LIMIT_NATS = 0.05
"""The most nats by which the final loss of a run under chaos may exceed that of the undisturbed lab."""


@dataclass(frozen=True, slots=True)
class FaultDone:
    """A fault that was done to a run on purpose. `actions` are in words. `seconds` is the time since the start at which
    it was done; None: never. `place` is the round and inner step (from 1) that the swarm had reached."""

    fault: str
    actions: list[str]
    seconds: float | None
    place: tuple[int, int]


@dataclass(slots=True)
class Chaos:
    """The faults of a run. `alive` are the processes that were there at its end; `lab_loss` is the final loss of the
    undisturbed lab run of the same manifest, None where the two were not compared."""

    faults: Sequence[FaultDone]
    alive: frozenset[str]
    lab_loss: float | None = None

    def result(self) -> dict[str, Any]:
        """The faults in `report.json`."""
        return {"faults": [asdict(fault) for fault in self.faults]}


@dataclass(frozen=True, slots=True)
class Peak:
    """The most memory that a process has taken, and what the memory model says that it takes, in bytes."""

    measured: int
    estimate: int


@dataclass(slots=True)
class RoundEntry:
    """The record of one round. `done` is by process; `digests` by part, then peer; `finished` are the peers that ended
    with it, perhaps without having taken part in it; `gains` are an audit's, by author."""

    done: dict[str, RoundDone] = field(default_factory=dict)
    digests: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    evaluated: Evaluated | None = None
    finished: set[str] = field(default_factory=set)
    gains: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    """Built event by event. Processes have names; the peer id of each is in its `Joined`."""

    manifest: Manifest
    rounds: dict[int, RoundEntry] = field(default_factory=lambda: defaultdict(RoundEntry))
    joined: dict[str, Joined] = field(default_factory=dict)
    suspected: list[Suspected] = field(default_factory=list)
    failure: str | None = None
    chaos: Chaos | None = None
    peaks: dict[str, Peak] = field(default_factory=dict)
    """The peaks of memory by process."""

    def take(self, process: str, event: Event) -> None:
        """Hear what a process said."""
        match event:
            case Joined():
                self.joined[process] = event
            case RoundDone(round):
                self.rounds[round].done[process] = event
                self._note_digests(process, round, event.digests)
            case Finished(round, digests) if digests:
                self.rounds[round].finished.add(process)
                self._note_digests(process, round, digests)
            case Evaluated():
                self.rounds[event.round].evaluated = event
            case Audited():
                self.rounds[event.round].gains |= event.gains
            case Suspected():
                self.suspected.append(event)
            case _:
                pass

    def _note_digests(self, process: str, round: int, digests: Mapping[str, str]) -> None:
        for part, digest in digests.items():
            self.rounds[round].digests[part][self._peer(process)] = digest

    def note_peak(self, process: str, peak: Peak) -> None:
        """Note what a process has taken of memory; one that was started again may have taken more before."""
        before = self.peaks.get(process, peak)
        self.peaks[process] = peak if peak.measured >= before.measured else before

    def listener(self, process: str) -> Listener:
        """`take` for one process."""
        return lambda event: self.take(process, event)

    def _peer(self, process: str) -> str:
        return self.joined[process].peer_id if process in self.joined else process

    def verdict(self) -> str:
        """`completed`, or what was wrong: a round is missing, digests differ, or the loss did not fall."""
        faults = self._faults() if self.chaos is None else self._faults_after_chaos(self.chaos)
        return self.failure or next(faults, COMPLETED)

    def _faults(self) -> Iterator[str]:
        for round in range(1, self.manifest.outer.rounds + 1):
            entry = self.rounds.get(round, RoundEntry())
            missing = sorted(self.joined.keys() - entry.done.keys())
            if missing or not entry.done:
                yield f"round {round} was not completed by {', '.join(missing) or 'anybody'}"
            for part, digests in entry.digests.items():
                if len(set(digests.values())) > 1 and not self._settled(part, round):
                    yield f"after round {round} the peers of {part} hold {len(set(digests.values()))} different states"
            if entry.evaluated is None:
                yield f"round {round} was not evaluated"
        yield from self._rising_loss()

    def _settled(self, part: str, since: int) -> bool:
        """Whether all of a part's peers agree after a later round: a contribution that came late had not come to all
        yet. Who is split from others stays so, as a state is the sum of all contributions there were."""
        later = (self.rounds.get(round, RoundEntry()) for round in range(since + 1, self.manifest.outer.rounds + 1))
        peers = self.rounds[since].digests[part].keys()
        held = (entry.digests.get(part, {}) for entry in later)
        return any(digests.keys() >= peers and len(set(digests.values())) == 1 for digests in held)

    @property
    def _last(self) -> RoundEntry:
        """The run's last round; empty where nobody has come so far."""
        return self.rounds.get(self.manifest.outer.rounds, RoundEntry())

    def _faults_after_chaos(self, chaos: Chaos) -> Iterator[str]:
        """The faults of a run with chaos. A process that came late or was away for a while need not have all rounds; at
        the end all that are there agree."""
        rounds_asked = self.manifest.outer.rounds
        for round in range(1, rounds_asked + 1):
            if not self.rounds.get(round, RoundEntry()).done:
                yield f"round {round} was not completed by anybody"
        last = self._last
        missing = sorted((self.joined.keys() & chaos.alive) - last.done.keys() - last.finished)
        if missing:
            yield f"round {rounds_asked} was not completed by {', '.join(missing)}"
        if different := self._different_at_the_end(chaos):
            yield f"at the end the peers of {', '.join(different)} hold different states"
        if last.evaluated is None:
            yield f"round {rounds_asked} was not evaluated"
        yield from self._rising_loss()
        worse = self._worse_than_lab(chaos)
        if worse is not None and not worse <= LIMIT_NATS:
            yield f"the final loss is {worse:.3f} nats above the undisturbed lab's, more than {LIMIT_NATS}"

    def _different_at_the_end(self, chaos: Chaos) -> list[str]:
        """The parts of which the processes alive at the end hold more than one state."""
        alive = {self._peer(process) for process in chaos.alive}
        return sorted(
            part
            for part, digests in self._last.digests.items()
            if len({digest for peer, digest in digests.items() if peer in alive}) > 1
        )

    def _worse_than_lab(self, chaos: Chaos) -> float | None:
        last = self._last.evaluated
        return None if last is None or chaos.lab_loss is None else last.loss - chaos.lab_loss

    def _rising_loss(self) -> Iterator[str]:
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
        """The content of `report.json`."""
        last = self.rounds[max(self.rounds)] if self.rounds else RoundEntry()
        peers = {
            self._peer(process): {"pipeline_sent": done.pipeline_sent, "outer_sent": done.outer_sent}
            for process, done in last.done.items()
        }
        result = {
            "run": self.manifest.model_dump(mode="json"),
            "rounds": [_row(round, entry) for round, entry in sorted(self.rounds.items())],
            "digests": {part: dict(digests) for part, digests in sorted(last.digests.items())},
            "bytes": {
                "pipeline_sent": sum(row["pipeline_sent"] for row in peers.values()),
                "outer_sent": sum(row["outer_sent"] for row in peers.values()),
                "peers": peers,
            },
            "tokens_per_second": self.tokens / self.seconds if self.seconds else 0.0,
            "memory": {process: asdict(peak) for process, peak in self.peaks.items()},
            "outcome": self.verdict(),
        }
        if any(entry.gains for entry in self.rounds.values()):
            result["audit"] = {
                "gains": {str(round): entry.gains for round, entry in sorted(self.rounds.items()) if entry.gains},
                "suspected": [asdict(row) for row in self.suspected],
            }
        return result if self.chaos is None else result | {"chaos": self._chaos_result(self.chaos)}

    def _chaos_result(self, chaos: Chaos) -> dict[str, Any]:
        last = self._last.evaluated
        return chaos.result() | {
            "rounds_completed": sum(1 for entry in self.rounds.values() if entry.done),
            "rounds_asked": self.manifest.outer.rounds,
            "alive": sorted(chaos.alive),
            "digests_equal": last is not None and not self._different_at_the_end(chaos),
            "final_loss": last.loss if last else None,
            "lab_loss": chaos.lab_loss,
            "difference": self._worse_than_lab(chaos),
            "limit": LIMIT_NATS,
        }

    def write(self, path: Path) -> str:
        """Write the report, and `loss.png` beside it where there are losses. Returns a sentence on where they are."""
        path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(to_plain(self.result()), indent=2, allow_nan=False) + "\n").encode())
        if not self.losses():
            return f"The report is in {path}"
        plot(self, path.with_name("loss.png"))
        return f"The report is in {path}, its curve in {path.with_name('loss.png')}"


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


def plot(report: Report, path: Path) -> None:
    """Draw held-out loss over rounds: through the boundaries, and plain."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    losses, replicas = report.losses(), report.manifest.replicas
    rounds = [entry.round for entry in losses]
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    through = "through the boundaries" if report.manifest.compressed else "through the wire's number format"
    axes.plot(rounds, [entry.loss for entry in losses], "o-", color="#c2410c", label=through)
    axes.plot(rounds, [entry.loss_plain for entry in losses], "s--", color="#1d4ed8", label="plain")
    axes.set(
        xlabel=f"outer round (H = {report.manifest.inner.steps} inner steps)", ylabel="held-out loss, nats per token"
    )
    k = "k by link" if replicas.compression == "auto" else f"k = d/{replicas.compression}"
    axes.set_title(
        f"{replicas.groups} groups × {replicas.stages} stages at {k} + {replicas.datacenters} datacenter replicas"
    )
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
