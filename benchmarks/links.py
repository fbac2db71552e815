"""What two settings for slow links gain: a k that each group chooses (`replicas.compression = "auto"`), and rounds that
overlap (`outer.overlap`).

Real peers train `nano` over links of their own: network namespaces with a rate, the same up and down (`shaped/`). A row
has the tokens a second over `ROUNDS` rounds, after `WARM_UP` in which a group tries values of k. k by link stands
beside two fixed values; an overlapping run stands beside one that waits for contributions.
"""

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from shaped.hosts import Hosts, hosts, missing

from protocol.events.activity import RoundDone
from protocol.events.group_decisions import CompressionChosen
from tests.reference.processes import Peer, serving

WARM_UP, ROUNDS = 8, 8
ONE_WAY = 0.005
"""The delay of each link, in seconds."""

RUN = """
[model]
preset = "nano"
layers = 2
[replicas]
groups = {groups}
stages = 2
datacenters = {datacenters}
{compression}
[inner]
steps = {steps}
sequences = 32
microbatch = 2
[outer]
rounds = 1000
{overlap}
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """A manifest, by what differs, and the rates of the links in Mb/s."""

    name: str
    megabits: float
    compression: str = ""
    overlap: bool = False

    def manifest(self) -> str:
        """One group of two volunteers, or two datacenters where no k is asked about."""
        group = bool(self.compression)
        return RUN.format(
            groups=int(group),
            datacenters=0 if group else 2,
            steps=4 if group else 2,
            compression=f"compression = {self.compression}" if group else "",
            overlap="overlap = true\ngrace = 3" if self.overlap else "",
        )

    def commands(self, ticket: str) -> list[list[str]]:
        """What the two peers run."""
        if self.compression:
            return [["join", ticket, "--stage", str(stage)] for stage in range(2)]
        return [["replica", ticket] for _ in range(2)]


SETTINGS = (
    *(
        Setting(f"k = {name}", rate, value)
        for rate in (2.0, 500.0)
        for name, value in (("d/2", "2"), ("d/8", "8"), ("auto", '"auto"'))
    ),
    *(Setting(name, rate, overlap=name == "overlap") for rate in (1.0, 5.0, 500.0) for name in ("waits", "overlap")),
)


@dataclass(frozen=True, slots=True)
class Speed:
    """One run; `chosen` is the d/k that its group had at the end, 0 where nothing is chosen."""

    setting: str
    megabits: float
    tokens_per_second: float
    chosen: int


def speed_of(setting: Setting, on: Hosts, folder: Path) -> Speed:
    """Train until enough rounds are measured."""
    with ExitStack() as stack:
        run = serving(setting.manifest(), folder / "run", f"{on.address(0)}:7700", on.enter(0))
        ticket = str(stack.enter_context(run))
        on.limit(setting.megabits, 3)
        peers = []
        for number, command in enumerate(setting.commands(ticket)):
            own = ["--dir", str(folder / f"peer{number}"), "--device", "cpu", "--threads", "1"]
            peers.append(stack.enter_context(Peer(*command, *own, inside=on.enter(number + 1))))

        def ended(round: int) -> float:
            peers[0].wait_for(RoundDone, lambda event: event.round >= round, seconds=900)
            return time.monotonic()

        began = ended(WARM_UP)
        seconds = ended(WARM_UP + ROUNDS) - began
        said = list(peers[0].said)
        measured = range(WARM_UP + 1, WARM_UP + ROUNDS + 1)
        tokens = sum(event.tokens for event in said if isinstance(event, RoundDone) and event.round in measured)
        choices = [event.compression for event in said if isinstance(event, CompressionChosen)]
        return Speed(setting.name, setting.megabits, tokens / seconds, choices[-1] if choices else 0)


def line(speed: Speed) -> str:
    """A line of the table."""
    chosen = f"  d/{speed.chosen} at the end" if speed.chosen else ""
    return f"{speed.setting:<10} {speed.megabits:>5.0f} Mb/s  {speed.tokens_per_second:8.0f} tokens/s{chosen}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.add_argument("--only", default="", help="settings whose name begins so")
    given = parser.parse_args()
    if lacking := missing():
        print(lacking, file=sys.stderr)
        return 1
    speeds = []
    for setting in SETTINGS:
        if not setting.name.startswith(given.only):
            continue
        with tempfile.TemporaryDirectory() as folder, hosts(3, ONE_WAY) as on:
            speeds.append(speed_of(setting, on, Path(folder)))
        print(line(speeds[-1]), file=sys.stderr if given.json else sys.stdout, flush=True)
    if given.json:
        print(json.dumps([asdict(speed) for speed in speeds], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
