"""Attackers in a small swarm of real processes, one of a kind or a crowd of all: they change nothing that matters."""

import json
import os
from pathlib import Path
from typing import get_args

import pytest

from tests.chaos.faults import AttackKind, CrowdKind
from tests.reference.processes import Outcome, attacked_swarm

SHAPE = ["--groups", "2", "--rounds", "6", "--inner-steps", "6", "--no-compare"]

WITHIN_THE_RULES = ("flipped",)
"""Nothing refuses what follows the rules: `--audit` and `clip` are for that."""

MARGIN = 0.5
"""Nats: what the swarm gains in one of these six rounds. A round takes seconds here, and to find an attacker that
stalls its group takes longer than that, so its group may miss some of them, as one replica of three. What an attack
does to a real run is measured apart."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The final loss of the same swarm without an attacker."""
    outcome = attacked_swarm(tmp_path_factory.mktemp("undisturbed"), *SHAPE)
    loss: float = outcome.report["rounds"][-1]["loss"]
    return loss


def attacker_said(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "net" / "attacker.jsonl").read_text().splitlines()]


EVERY = os.environ.get("HETPEER_EVERY_ATTACKER")

ALWAYS = ("garbage",)
"""In a pipeline, which is open to a daemon alone; the crowd has the rest. A run takes a minute; the others' come with
`HETPEER_EVERY_ATTACKER`, as in `HETPEER_EVERY_ATTACKER=1 make test ARGS=tests/system/test_attackers.py`."""

KINDS = [kind for kind in get_args(AttackKind) if kind not in WITHIN_THE_RULES and (kind in ALWAYS or EVERY)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_an_attacker_ends_as_one_without(kind: str, undisturbed: float, tmp_path: Path):
    outcome = attacked_swarm(tmp_path, *SHAPE, "--chaos", f"attacker:{kind}")
    said = attacker_said(tmp_path)
    (attacker,) = {each["peer_id"] for each in said if each["event"] == "Joined"}
    assert any(each.get("doing", "").startswith("attack: ") for each in said)
    assert outcome.report["chaos"]["digests_equal"]
    assert outcome.report["chaos"]["rounds_completed"] == 6
    assert refused(outcome) <= {attacker}
    assert outcome.report["rounds"][-1]["loss"] - undisturbed <= MARGIN


CROWDS = ("all*10", *(f"{kind}*2" for kind in get_args(CrowdKind) if EVERY), *(["all*100"] if EVERY else []))

MOST_GROWTH = 256.0
"""MiB of one process: all sources together (`SECURITY.md`, "What a peer may cost another")."""


@pytest.mark.parametrize("crowd", CROWDS)
def test_a_run_with_a_crowd_of_attackers_ends_as_one_without(crowd: str, undisturbed: float, tmp_path: Path):
    """Judged by what is counted: what it costs in time, `benchmarks/attacks.py` measures on a machine left alone."""
    outcome = attacked_swarm(tmp_path, *SHAPE, "--chaos", f"crowd:{crowd}@round=2+15s")
    (toll,) = outcome.report["chaos"]["crowds"]
    assert toll["told"]["outcomes"]
    assert outcome.report["chaos"]["digests_equal"]
    assert outcome.report["chaos"]["rounds_completed"] == 6
    assert not refused(outcome) & {line["peer_id"] for line in outcome.said("Joined")}
    assert max(held["most"] - held["before"] for held in toll["memory"].values()) < MOST_GROWTH
    assert outcome.report["rounds"][-1]["loss"] - undisturbed <= MARGIN


def refused(outcome: Outcome) -> set[str]:
    """Whom honest peers accused of breaking the protocol."""
    return {line["peer"] for line in outcome.said("Refused")}
