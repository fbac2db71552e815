"""Real processes that are killed, cut off, and come back: one state at the end, and nothing done twice."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from peer.testnet import namespaces
from tests.reference.processes import HETPEER, SECONDS, TEXT

needs_namespaces = pytest.mark.skipif(namespaces.missing() is not None, reason=f"needs {namespaces.missing()}")


@dataclass(frozen=True)
class Outcome:
    """A testnet's report, and everything its processes said, in order."""

    report: dict[str, Any]
    log: list[dict[str, Any]]

    def said(self, event: str, process: str = "") -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == event and process in ("", line["process"])]

    def digests(self, lines: list[dict[str, Any]]) -> dict[str, set[str]]:
        """The digests of each part, as these lines have them."""
        found: dict[str, set[str]] = {}
        for line in lines:
            for part, digest in line["digests"].items():
                found.setdefault(part, set()).add(digest)
        return found


def testnet(directory: Path, chaos: str, *more: str) -> Outcome:
    (directory / "village.txt").write_text(TEXT)
    where = ["--dir", str(directory / "net"), "--report", str(directory / "report.json")]
    shape = ["--data", str(directory / "village.txt"), "--inner-steps", "8", "--no-compare", *more]
    command = [*HETPEER, "testnet", *where, *shape, "--chaos", chaos]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    log = [json.loads(line) for line in (directory / "net" / "events.jsonl").read_text().splitlines()]
    return Outcome(json.loads((directory / "report.json").read_text()), log)


testnet.__test__ = False  # type: ignore[attr-defined]


def test_a_member_a_leader_and_a_datacenter_die_and_come_back(tmp_path: Path):
    chaos = "kill:stage=1@round=2.3+1s,kill:group=1/stage=0@round=4.4+1s,kill:datacenter=0@round=6.2+1s"
    outcome = testnet(tmp_path, chaos, "--rounds", "9")
    assert outcome.report["chaos"]["rounds_completed"] == 9
    assert outcome.report["chaos"]["digests_equal"]
    assert outcome.said("GroupBroken")
    assert len(outcome.said("Resumed")) == 3
    assert not outcome.said("Resynchronised")
    names = {(line["process"], line["round"]) for line in outcome.said("Contributed")}
    assert len(names) == len(outcome.said("Contributed"))  # nobody contributes to a round twice


@pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
def test_everything_killed_at_once_goes_on_with_the_digests_it_had(tmp_path: Path, overlap: bool):
    outcome = testnet(tmp_path, "kill:all@round=4.4+1s", "--rounds", "6", *(["--overlap"] if overlap else []))
    assert outcome.report["chaos"]["digests_equal"]
    resumed = [line["round"] for line in outcome.said("Resumed")]
    assert len(resumed) >= 5
    # Contributed to round 3, which had been finished, or was about to be; with overlap one may be a round behind.
    assert min(resumed) >= 2 - overlap
    for round in (1, 2, 3):  # finished before the kill, and the third again after it
        lines = [line for line in outcome.said("RoundDone") if line["round"] == round]
        assert all(len(digests) == 1 for digests in outcome.digests(lines).values())


def test_a_datacenter_that_joins_in_the_midst_takes_the_state_from_several_peers_and_contributes_next(tmp_path: Path):
    outcome = testnet(tmp_path, "join:datacenter@round=9", "--rounds", "13", "--inner-steps", "14")
    assert outcome.report["chaos"]["digests_equal"]
    fetched = [
        line["doing"] for line in outcome.said("Progress", "datacenter 2") if " came from peer " in line["doing"]
    ]
    assert len({line.split()[-1] for line in fetched}) >= 2
    first = min(line["round"] for line in outcome.said("Contributed", "datacenter 2"))
    began = next(index for index, line in enumerate(outcome.log) if line["event"] == "Joined" and line["slot"] == 4)
    running = max((line["round"] for line in outcome.log[:began] if line["event"] == "StepDone"), default=0)
    assert first <= running + 3  # it takes seconds to start, and the others do not wait


@needs_namespaces
def test_two_halves_that_were_cut_off_from_each_other_become_one_again(tmp_path: Path):
    outcome = testnet(tmp_path, "partition:half@rounds=3-4", "--rounds", "8", "--datacenters", "2")
    assert outcome.report["chaos"]["digests_equal"]
    assert not outcome.said("Resynchronised")
    apart = outcome.digests([line for line in outcome.said("RoundDone") if line["round"] == 3])
    assert len(apart["embedding"]) >= 2
    assert all(len(digests) == 1 for digests in outcome.digests(outcome.said("Finished")).values())
