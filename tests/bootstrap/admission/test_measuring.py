"""How much of the node's link those get who measure it."""

import pytest

from bootstrap.admission.measuring import NETWORK_BURST, Measuring
from protocol.errors import RefusedError
from protocol.limits import CHUNK_BYTES
from protocol.net.allowances import RateLimit

ANN, BOB = "ipv4:192.0.2.1:5000", "ipv4:198.51.100.1:5000"


def test_an_answer_is_as_long_as_was_asked_for():
    measuring = Measuring()
    assert [len(measuring.answer(ANN, b"", wanted)) for wanted in (0, 1, CHUNK_BYTES)] == [0, 1, CHUNK_BYTES]


@pytest.mark.parametrize(("piece", "wanted"), [(bytes(CHUNK_BYTES + 1), 0), (b"", CHUNK_BYTES + 1)])
def test_pieces_have_a_bound_in_both_directions(piece: bytes, wanted: int):
    with pytest.raises(RefusedError, match="262144 bytes at most"):
        Measuring().answer(ANN, piece, wanted)


def test_a_network_is_told_to_wait_while_another_is_answered():
    measuring = Measuring()
    for _ in range(NETWORK_BURST):
        measuring.answer(ANN, b"", 1)
    with pytest.raises(RefusedError, match="try again in 1 s"):
        measuring.answer(ANN, b"", 1)
    assert measuring.answer(BOB, b"", 1)


def test_everybody_together_has_a_bound():
    measuring = Measuring(by_all=RateLimit(2, 3600.0))
    for caller in (ANN, BOB):
        measuring.answer(caller, b"", 1)
    with pytest.raises(RefusedError, match="too much is measured at once"):
        measuring.answer("ipv4:203.0.113.1:1", b"", 1)
