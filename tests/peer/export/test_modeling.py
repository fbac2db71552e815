"""A model with n-gram tables leaves a run, runs under transformers by the module beside it, and begins another run."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor
from typer.testing import CliRunner

from bootstrap.genesis import create_run
from peer.cli.__main__ import app
from peer.export.collected import collect
from peer.export.written import write_export
from peer.model.first_weights import read_part
from peer.model.language_model import LanguageModel, Sampling, generate
from protocol.identity import stage_part
from protocol.manifest import load_manifest
from protocol.run.hugging_face import open_checkpoint
from tests.reference.processes import TEXT
from tests.reference.small_manifest import small_manifest

PROMPTS = [[5, 17, 250, 3, 5, 17, 250], [88, 3, 5]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of a run whose weights are random, tables too."""
    here = tmp_path_factory.mktemp("export")
    (here / "text.txt").write_text(TEXT)
    model = {"layers": 4, "vocabulary": 300, "context": 48}
    run = small_manifest(model=model, replicas={"layers": [1, 2, 1], "stages": 3, "ngrams": 3, "ngram_width": 7})
    create_run(run, here / "run", here / "text.txt")
    collected, random = collect([here / "run"], None, lambda event: None), torch.Generator().manual_seed(1)
    for grid in collected.grids.values():
        for name, values in grid.items():
            if not name.endswith("norm.weight"):
                grid[name] = torch.randint(-(2**25), 2**25, values.shape, generator=random, dtype=torch.int32)
    write_export(collected, here / "model", None, lambda event: None)
    return here / "model"


@pytest.fixture(scope="module")
def ours(folder: Path) -> LanguageModel:
    checkpoint = open_checkpoint(folder)
    model = LanguageModel(checkpoint.model, checkpoint.ngrams)
    model.load(lambda name: torch.from_numpy(checkpoint.read(name)))
    return model


@pytest.fixture(scope="module")
def theirs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[transformers.PreTrainedModel]:
    """As the model card says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        patch.setattr(sys, "path", [*sys.path])
        assert "trust_remote_code=True" in (folder / "README.md").read_text()
        yield transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


def written(by: LanguageModel, prompt: list[int], most: int = 20) -> list[int]:
    return list(generate(by, prompt, most, Sampling(), 0))


def test_transformers_computes_what_our_model_does(theirs: transformers.PreTrainedModel, ours: LanguageModel):
    tokens_BL = torch.randint(300, (3, 48))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens_BL).logits, ours(tokens_BL), rtol=0, atol=1e-4)
        without = ours(tokens_BL.flip(1)).flip(1)
    assert (without - ours(tokens_BL)).abs().max() > 0.1, "the order of tokens plays a part"


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("prompt", PROMPTS, ids=["long", "short"])
def test_generate_writes_what_we_sample(
    theirs: transformers.PreTrainedModel, ours: LanguageModel, prompt: list[int], cached: bool
):
    own = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "use_cache": cached}
    found = theirs.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)).long(), **own)
    assert found[0, len(prompt) :].tolist() == written(ours, prompt)


def test_texts_of_a_padded_batch_are_written_as_alone(theirs: transformers.PreTrainedModel, ours: LanguageModel):
    long, short = PROMPTS
    fill = len(long) - len(short)
    batch_BL = torch.tensor([long, [0] * fill + short])
    mask_BL = torch.tensor([[1] * len(long), [0] * fill + [1] * len(short)])
    own = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    found = theirs.generate(batch_BL, attention_mask=mask_BL, **own)[:, len(long) :].tolist()
    for prompt, each in zip(PROMPTS, found, strict=True):
        alone = written(ours, prompt, 12)
        assert each == alone + [0] * (len(each) - len(alone))


def test_beams_are_the_same_with_a_cache_and_without(theirs: transformers.PreTrainedModel):
    def beams(cached: bool) -> Tensor:
        own = {"max_new_tokens": 12, "num_beams": 3, "do_sample": False, "pad_token_id": 0, "use_cache": cached}
        return theirs.generate(torch.tensor([PROMPTS[0]]), attention_mask=torch.ones(1, 7).long(), **own)

    assert torch.equal(beams(True), beams(False))


def test_a_cache_without_its_text_is_an_error(theirs: transformers.PreTrainedModel):
    with torch.no_grad():
        cache = theirs(torch.tensor([PROMPTS[0]]), use_cache=True).past_key_values
        with pytest.raises(ValueError, match="give text_ids"):
            theirs(torch.tensor([[1]]), past_key_values=cache)
        with pytest.raises(ValueError, match="give input_ids"):
            theirs(inputs_embeds=torch.zeros(1, 1, 16))


def test_another_run_begins_from_it_tables_and_all(folder: Path, tmp_path: Path):
    said = CliRunner().invoke(app, ["import", str(folder), "--out", str(tmp_path / "run.toml")])
    assert said.exit_code == 0, said.output
    run, checkpoint = load_manifest(tmp_path / "run.toml"), open_checkpoint(folder)
    assert (run.ngrams, run.replicas.layers) == (checkpoint.ngrams, (1, 2, 1))
    (tmp_path / "text.txt").write_text(TEXT)
    create_run(run, tmp_path / "run", tmp_path / "text.txt", weights=folder)
    for stage in (1, 2):
        for name, units in read_part(tmp_path / "run", run, stage_part(stage)).items():
            assert torch.equal(units, torch.from_numpy(checkpoint.units(name))), name


@pytest.mark.usefixtures("theirs")
def test_sample_writes_with_it(folder: Path, ours: LanguageModel):
    arguments = ["sample", str(folder), "7 volunteers", "--temperature", "0", "--tokens", "9", "--json"]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0, said.output
    found = json.loads(said.output)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert found["tokens"] == written(ours, tokenizer("7 volunteers")["input_ids"], 9)


@pytest.mark.parametrize("reentrant", [False, True])
def test_it_trains_with_activations_computed_again(theirs: transformers.PreTrainedModel, reentrant: bool):
    tokens_BL = torch.randint(300, (2, 20))

    def gradients() -> dict[str, Tensor]:
        theirs.zero_grad()
        theirs(tokens_BL, labels=tokens_BL).loss.backward()
        return {name: each.grad.clone() for name, each in theirs.named_parameters()}

    theirs.train()
    expected = gradients()
    theirs.activation_checkpointing_enable({"use_reentrant": reentrant})
    found = gradients()
    theirs.activation_checkpointing_disable()
    theirs.eval()
    assert expected["model.ngrams.1.3"].abs().max() > 0
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
