"""What a stage asks the operator's observer about a pass: there and back, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protocol.codec.frames import LARGEST_IN_FRAME
from protocol.codec.spot_check import (
    BESIDE,
    NOTHING,
    SAMPLED,
    Likeness,
    ReceivedPass,
    group_digest,
    likeness,
    pack_likeness,
    pack_question,
    places,
    unpack_likeness,
    unpack_question,
    whole_group_digest,
)
from protocol.errors import FormatError
from protocol.identity import PeerId
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(
    replicas={"stages": 3, "compression": "auto"}, outer={"rounds": 9}, model={"layers": 3, "d": 128}
)
STAGES, SEQUENCES, CONTEXT = 3, MANIFEST.inner.microbatch, MANIFEST.model.context


def received(stage: int) -> ReceivedPass:
    chance = np.random.default_rng(stage)
    numbers = [chance.normal(size=SAMPLED).astype(np.float32) for _ in range(2)]
    tokens = chance.integers(0, MANIFEST.model.vocabulary, (SEQUENCES, CONTEXT + 1))
    came = (numbers[0] if stage else NOTHING, numbers[1] if stage < STAGES - 1 else NOTHING)
    return ReceivedPass(9, stage, MANIFEST.compressions[-1], tokens, 2**64 - 1, *came, "ab" * 32)


@pytest.mark.parametrize("stage", range(STAGES))
def test_what_is_asked_is_what_was_received(stage: int):
    asked = received(stage)
    read = unpack_question(pack_question(asked), MANIFEST)
    assert (read.round, read.stage, read.compression, read.seed) == (9, stage, asked.compression, asked.seed)
    assert np.array_equal(read.tokens, asked.tokens)
    assert np.array_equal(read.activations, asked.activations)
    assert np.array_equal(read.gradients, asked.gradients)
    assert read.group_digest == asked.group_digest


@pytest.mark.parametrize(
    "wrong",
    [
        {"round": 0},
        {"round": 10},
        {"stage": STAGES},
        {"stage": 0},
        {"stage": STAGES - 1},
        {"compression": 3},
        {"tokens": np.zeros((SEQUENCES, CONTEXT), np.int64)},
        {"tokens": np.full((SEQUENCES, CONTEXT + 1), MANIFEST.model.vocabulary)},
        {"group_digest": "ab"},
        {"group_digest": "zz" * 32},
        {"activations": NOTHING},
        {"gradients": np.zeros(SAMPLED + 1, np.float32)},
        {"activations": np.full(SAMPLED, np.nan, np.float32)},
        {"gradients": np.full(SAMPLED, 2 * LARGEST_IN_FRAME, np.float32)},
    ],
    ids=str,
)
def test_what_no_stage_received_is_refused(wrong: dict[str, Any]):
    with pytest.raises(FormatError):
        unpack_question(pack_question(replace(received(1), **wrong)), MANIFEST)


def test_places_are_the_same_everywhere():
    """Asker and observer may have other versions of NumPy."""
    assert places(7, 1000)[:4].tolist() == [272, 210, 311, 820]
    assert places(7, 1000).tolist() != places(8, 1000).tolist()
    drawn = places(2**64 - 1, 64)
    assert len(drawn) == SAMPLED
    assert set(drawn.tolist()) == set(range(64))


def test_likeness_is_the_cosine():
    chance = np.random.default_rng(1)
    one, other = (chance.normal(size=SAMPLED).astype(np.float32) for _ in range(2))
    assert likeness(one, 3 * one) == pytest.approx(1)
    assert likeness(one, -one) == pytest.approx(-1)
    assert abs(likeness(one, other)) < 0.1
    assert likeness(one, np.zeros(SAMPLED, np.float32)) == 0.0
    assert np.isfinite(likeness(np.full(SAMPLED, LARGEST_IN_FRAME, np.float32), one))


@pytest.mark.parametrize("compression", ["auto", 1], ids=["compressed", "whole"])
def test_a_group_digest_tells_every_part_that_a_stage_of_it_follows(compression: str | int):
    """In a group without compression the first stage alone looks tokens up."""
    manifest = small_manifest(replicas={"stages": 3, "compression": compression}, model={"layers": 3, "d": 128})
    digests = {"embedding": "e", "stage-0": "0", "stage-1": "1", "stage-2": "2"}
    chain = ""
    for stage in (2, 1, 0):
        own = {part: digests[part] for part in digests if part in ("embedding", f"stage-{stage}")}
        if compression == 1 and stage:
            del own["embedding"]
        chain = group_digest(own, manifest, stage, chain)
    assert chain == whole_group_digest(digests, manifest)
    others = {whole_group_digest(digests | {part: "other"}, manifest) for part in digests}
    assert len(others | {chain}) == 5


def test_an_answer_comes_through():
    like = Likeness(0.5, -0.25, True, {PeerId("one"): (0.0, 1.0), PeerId("other"): (0.125, 0.0)})
    message = pack_likeness(like, b"the operator's word")
    assert unpack_likeness(message) == like
    assert message.granted == b"the operator's word"


@pytest.mark.parametrize("field", ["activations", "gradients"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_answer_with_a_likeness_that_is_no_number_is_refused(field: str, value: float):
    message = pack_likeness(Likeness(0.5, 0.5, False, {PeerId("one"): (0.0, 1.0)}), b"")
    wrong = type(message)(**{field: value})
    with pytest.raises(FormatError, match="no number"):
        unpack_likeness(wrong)
    setattr(message.neighbours[0], field, value)
    with pytest.raises(FormatError, match="no number"):
        unpack_likeness(message)


def test_a_question_names_two_neighbours_at_most():
    asked = replace(received(1), neighbours=tuple(PeerId(str(each)) for each in range(BESIDE + 5)))
    assert unpack_question(pack_question(asked), MANIFEST).neighbours == asked.neighbours[:BESIDE]
