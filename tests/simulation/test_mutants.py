"""Planted errors are found: else the simulator would prove nothing."""

import pytest

from tests.simulation.mutants import MUTANTS, kills, planted
from tests.simulation.properties import run
from tests.simulation.schedule import draw

KILLERS = {
    "exceptions of the version vector skipped": 0,
    "a late contribution applied twice": 0,
    "what came late is not in the term that is folded": 130,
    "receipts needed a round too late": 2084,
    "receipts needed a round too early": 20,
    "rounds folded a round too early": 130,
    "one receipt fewer needed": 121,
    "one receipt fewer kept": 130,
    "one receipt needed however late (the issue's candidate, r = 1)": 136,
    "liars + 1 receipts needed however late (the issue's candidate, r > liars)": 217,
    "the author's own receipt counts": 121,
    "entries travel without their receipts": 133,
    "a receipt is signed, and nothing passed on": 5,
    "accepted although unproven": 121,
    "accepted without bytes": 0,
    "two versions without bytes keep the third out": 16,
    "of two versions the first counts": 5,
    "a revocation forgotten on catching up": 12,
    "a revocation reckoned from the receiver's clock": 1,
    "a revocation reaches as far back as it likes": 1768,
    "a revocation reaches into rounds that some have folded": 1768,
    "error feedback returned twice": 0,
    "returned, and not taken again when it counts after all": 999,
    "error feedback returned after adopting alone, not after folding": 0,
    "what was void and without bytes before a restart has them after it": 200485923,
    "own contribution on disk after it is published": 29,
    "a receipt is handed out before what it is for is on disk": -1351,
    "rounds folded in the wrong order": 165,
    "the state with the most contributions claimed stands": 3,
    "a newcomer adopts a state that nobody honest may have named": 1004240,
    "one liar's word is enough to doubt": 9,
    "who has forgotten a round, or not closed it yet, does not count": 4992,
    "who was there all the time judges anew what it accepted": 20300814385,
    "what was promised is passed on only after catching up": -497,
    "what is found on disk is in time however late it is": 40015270,
    "newcomers are waited for until they speak of closed rounds": 20050531,
    "one that is far behind speaks for one that has said nothing": 100514674,
    "one liar vouches": 386,
    "those who catch up themselves vouch": 4943,
    "a snapshot adopted without checking it against claims": 115,
    "naming an entry twice gives two votes": 22173,
    "an author that was away keeps what only it has": 3957,
    "one liar pushes the clock": 26,
    "anybody's word about its round moves the clock": 1000000000000,
    "who is revoked has a word still": 438,
    "a clock that ran ahead stays ahead": 12037,
    "a peer that is late goes on without catching up": 1254,
    "what is lost on the way is never asked for": 16,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_planted_error_is_killed_by_a_schedule_that_the_protocol_survives(mutant: str):
    seed = KILLERS[mutant]
    assert kills(mutant, seed)
    assert not run(draw(seed))


def test_a_mutant_is_gone_after_use():
    before = run(draw(0))
    with planted("a late contribution applied twice"):
        assert run(draw(0))
    assert run(draw(0)) == before == []
