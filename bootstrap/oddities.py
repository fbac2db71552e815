"""The odd settings of a run that is made: its operator is told, as a manifest is for ever. Nothing is refused."""

from pathlib import Path

from protocol.manifest import Manifest
from protocol.run.dataset import DATA, DataManifest
from protocol.run.run_files import TRAIN, Descriptor, token_dtype
from protocol.wording import abbreviated

GOOD_PASSES = 4
"""The times that a text may be read and teach about as much as fresh text (arXiv 2305.16264, section 6)."""


def oddities(manifest: Manifest) -> list[str]:
    """Sentences about what is odd in a manifest."""
    inner, steps = manifest.inner, manifest.inner.steps * manifest.outer.rounds
    if inner.warmup <= steps:
        return []
    return [
        f"inner.warmup = {inner.warmup:,} is longer than the run, which has {steps:,} inner steps: the learning rate "
        f"never comes to {inner.learning_rate:g}; usual is a fiftieth of the run, {max(1, steps // 50):,}"
    ]


def text_oddities(manifest: Manifest, tokens: int) -> list[str]:
    """Sentences about what is odd in a run's text, which has so many `tokens` to train on."""
    planned = manifest.tokens_per_step * manifest.inner.steps * manifest.outer.rounds * manifest.replicas.total
    if planned <= GOOD_PASSES * tokens:
        return []
    return [
        f"the run reads {abbreviated(planned)} tokens, and its text has {abbreviated(tokens)}: each is read "
        f"{planned / tokens:,.0f} times, and beyond {GOOD_PASSES} times a text teaches little. Give more text with "
        "--data, or fewer rounds"
    ]


def train_tokens(directory: Path, descriptor: Descriptor) -> int:
    """The number of tokens to train on of a run whose files are in a folder."""
    if descriptor.prepared:
        data = DataManifest.model_validate_json((directory / DATA).read_bytes())
        return sum(shard.tokens for shard in data.shards)
    return descriptor.file(TRAIN).size // token_dtype(descriptor.manifest.model.vocabulary).itemsize
