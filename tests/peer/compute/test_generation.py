"""Text by a model: greedy, drawn, and when it ends."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from peer.compute.generation import Sampling, generate, pick
from peer.model.language_model import LanguageModel
from protocol.run.hugging_face import config
from tests.peer.model.test_language_model import language_model, manifest
from tests.reference.llama import random_weights

PROMPT = [5, 17, 250, 3]
GREEDY = Sampling()


def model(**sizes: object) -> LanguageModel:
    of = manifest(**sizes)
    return language_model(of, random_weights(of, 3, torch.float32))


def written(by: LanguageModel, most: int, sampling: Sampling = GREEDY, seed: int = 0) -> list[int]:
    return list(generate(by, PROMPT, most, sampling, seed))


def test_greedy_text_is_the_argmax_of_the_whole_forward_pass_each_time() -> None:
    ours = model(end_of_text=298)
    tokens = written(ours, 30)
    for number, token in enumerate(tokens):
        assert token == int(ours(torch.tensor([PROMPT + tokens[:number]]))[0, -1].argmax())
    assert len(tokens) == 30


def test_greedy_text_is_that_of_transformers() -> None:
    of = manifest(end_of_text=298)
    theirs = LlamaForCausalLM(LlamaConfig(**config(of.model))).eval()
    theirs.load_state_dict(random_weights(of, 3, torch.float32))
    expected = theirs.generate(torch.tensor([PROMPT]), max_new_tokens=30, do_sample=False, pad_token_id=0)
    assert written(model(end_of_text=298), 30) == expected[0, len(PROMPT) :].tolist()


def test_the_same_seed_gives_the_same_text_and_others_give_others() -> None:
    ours, warm = model(end_of_text=298), Sampling(1.0, 0.9)
    first = written(ours, 30, warm, 7)
    assert first == written(ours, 30, warm, 7)
    assert first != written(ours, 30, warm, 8)


def test_it_ends_at_the_end_of_the_text_and_with_the_context() -> None:
    third = written(model(end_of_text=298), 3)[2]
    assert written(model(end_of_text=third), 30)[-1] == third
    assert len(written(model(end_of_text=third), 30)) <= 3
    assert len(written(model(end_of_text=298), 1000)) == 48 - len(PROMPT)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20), st.floats(0.1, 2), st.floats(0, 1), st.integers(0, 9))
def test_only_the_likeliest_tokens_that_make_up_top_p_are_drawn(
    logits: list[float], temperature: float, top_p: float, seed: int
) -> None:
    given_V = torch.tensor(logits)
    token = pick(given_V, Sampling(temperature, top_p), torch.Generator().manual_seed(seed))
    likely_V = (given_V / temperature).softmax(-1)
    likelier = float(likely_V[likely_V > likely_V[token]].sum())
    assert likelier < top_p + 1e-5 or token == int(likely_V.argmax()) or likely_V[token] == likely_V.max()


def test_draws_follow_the_probabilities() -> None:
    random, logits_V = torch.Generator().manual_seed(1), torch.tensor([0.7, 0.2, 0.1]).log()
    draws = torch.tensor([pick(logits_V, Sampling(1.0, 1.0), random) for _ in range(4000)])
    assert (draws.bincount() / 4000).tolist() == pytest.approx([0.7, 0.2, 0.1], abs=0.03)
    cut = torch.tensor([pick(logits_V, Sampling(1.0, 0.75), random) for _ in range(4000)])
    assert (cut.bincount() / 4000).tolist() == pytest.approx([7 / 9, 2 / 9], abs=0.03)
