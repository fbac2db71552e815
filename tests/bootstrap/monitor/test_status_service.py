"""What is answered to who asks how the run goes: a view that fits into a message, and not too often."""

import pytest

from bootstrap.monitor.status_service import NETWORK_BURST, StatusAnswers, fitting
from protocol.errors import RefusedError
from protocol.monitor import LineView, PeerView, RoundView, View
from protocol.net.allowances import RateLimit

ANN, BOB = "ipv4:192.0.2.1:5000", "ipv4:198.51.100.1:5000"


def view(peers: int = 1, rounds: int = 1, lines: int = 1) -> View:
    ids = [f"Qm{number:044}" for number in range(peers)]
    return View(
        run_id="ab" * 32,
        now=2.0,
        started=1.0,
        stages=1,
        replicas=1,
        rounds=100,
        round=1,
        inner_steps=2,
        compression=1,
        tokens=0,
        tokens_per_second=0.0,
        peers=[PeerView(id=each, role="datacenter") for each in ids],
        groups=[],
        history=[RoundView(round=each, began=1.0, contributions=dict.fromkeys(ids, 2)) for each in range(rounds)],
        log=[LineView(at=1.0, kind="Refused", words=f"line {each}") for each in range(lines)],
    )


def test_a_view_that_fits_is_all_there():
    whole = view(3, 4, 5)
    assert View.model_validate_json(fitting(whole)) == whole


def test_what_does_not_fit_loses_the_oldest_first():
    cut = View.model_validate_json(fitting(view(50, 40, 10), 30_000))
    assert cut.history
    assert cut.history[-1].round == 39
    assert cut.log[-1].words == "line 9"
    assert len(cut.peers) == 50


@pytest.mark.parametrize("most", [100_000, 10_000, 1000])
def test_whatever_there_is_fits(most: int):
    assert len(fitting(view(400, 100, 200), most)) <= most


def test_a_network_is_told_to_wait_while_another_is_answered():
    status = StatusAnswers(view)
    for _ in range(NETWORK_BURST):
        status.answer(ANN)
    with pytest.raises(RefusedError, match="try again in 1 s"):
        status.answer(ANN)
    assert View.model_validate_json(status.answer(BOB)) == view()


def test_everybody_together_has_a_bound():
    status = StatusAnswers(view, by_all=RateLimit(1, 3600.0))
    status.answer(ANN)
    with pytest.raises(RefusedError, match="asked for too often"):
        status.answer(BOB)


def test_many_who_ask_at_once_cost_one_view():
    made: list[View] = []

    def make() -> View:
        made.append(view())
        return made[-1]

    status = StatusAnswers(make)
    assert len({status.answer(caller) for caller in (ANN, BOB, ANN)}) == 1
    assert len(made) == 1
