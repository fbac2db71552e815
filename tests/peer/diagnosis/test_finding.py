"""Every warning says what to do."""

import pytest

from peer.diagnosis.finding import Finding, gravest


@pytest.mark.parametrize("outcome", ["warning", "failure"])
def test_nobody_warns_without_saying_what_to_do(outcome: str):
    with pytest.raises(ValueError, match="disk: whoever warns says what to do"):
        Finding("disk", "full", outcome)  # type: ignore[arg-type]
    assert Finding("disk", "full", outcome, "Free some").advice  # type: ignore[arg-type]


def test_a_finding_in_one_line_says_what_to_do():
    assert Finding("disk", "full", "failure", "Free some").words == "disk: full → Free some"
    assert Finding("disk", "70 GB free").words == "disk: 70 GB free"


def test_what_is_well_needs_no_advice():
    with pytest.raises(ValueError, match="nobody else"):
        Finding("disk", "70 GB free", "ok", "Free some")


def test_the_gravest_outcome_counts():
    assert gravest(["ok", "failure", "warning"]) == "failure"
    assert gravest(["ok", "warning"]) == "warning"
    assert gravest([]) == "ok"
