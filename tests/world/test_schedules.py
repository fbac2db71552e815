"""Random schedules of the real daemon; `python -m tests.world` plays more of them."""

import os
import subprocess
import sys
from datetime import date

import pytest

from tests.world.families import EARLY, LAPPING, MORE, UNEVEN
from tests.world.returning import RETURNING

FIRST = int(os.environ.get("HETPEER_WORLD_SEED", "0"))
SCHEDULES = int(os.environ.get("HETPEER_WORLD_SCHEDULES", "1"))
TODAY = int(os.environ.get("HETPEER_WORLD_TODAY", str(date.today().toordinal() % 100_000)))
"""The seed, in the family of leaving and coming back, that is played today: each day another."""

MORE_SCHEDULES = 1
"""So many of the second family are played as well."""

DENSE_COUNTEREXAMPLES = (2_000_004, 2_000_017, 2_000_102)
"""Seeds of the third family, which have found something wrong."""

STORM_COUNTEREXAMPLES = (3_000_105,)
"""And of the fourth."""

COUNTEREXAMPLES = (5, 2019, 2025, 30_022, 31_001, 1_000_003, 5_000_930, 6_000_510, 7_000_636)
"""The seeds that have found something wrong."""

TOLD = 2019
"""The one of them whose story is told."""


def played(*options: str) -> str:
    """What the command says; its failure is the test's."""
    done = subprocess.run([sys.executable, "-m", "tests.world", *options], capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_schedules_end_with_one_state_and_nobody_waiting():
    assert f"{SCHEDULES} schedules" in played("--schedules", str(SCHEDULES), "--seed", str(FIRST), "--processes", "2")


def test_schedules_with_gateways_full_disks_and_short_certificates_end_well():
    played("--schedules", str(MORE_SCHEDULES), "--seed", str(MORE + 1 + FIRST), "--processes", "2")


def test_a_run_that_begins_before_its_replicas_are_there_ends_well():
    played("--schedules", "1", "--seed", str(EARLY + 1 + FIRST))


def test_a_schedule_of_leaving_and_coming_back_loses_nothing():
    played("--seeds", str(RETURNING + TODAY))


def test_schedules_whose_inner_steps_overlap_or_are_unevenly_many_end_well():
    played("--seeds", str(LAPPING + FIRST), str(UNEVEN + FIRST), "--processes", "2")


def test_schedules_dense_with_faults_and_storms_at_the_end_end_well():
    seeds = DENSE_COUNTEREXAMPLES + STORM_COUNTEREXAMPLES
    assert f"{len(seeds)} schedules" in played("--seeds", *map(str, seeds), "--processes", "2")


def test_what_was_found_once_is_not_found_again():
    others = [str(seed) for seed in COUNTEREXAMPLES if seed != TOLD]
    assert "0 failed" in played("--seeds", *others, "--processes", "2")


@pytest.mark.parametrize("seed", [TOLD])
def test_a_seed_tells_its_story_again_to_the_byte_and_is_not_found_again(seed: int):
    first, again = (played("--replay", str(seed)) for _ in range(2))
    assert first == again
    assert len(first.splitlines()) > 100
