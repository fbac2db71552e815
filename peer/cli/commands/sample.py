"""`hetpeer sample`: what a model writes."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from tokenizers import Tokenizer
from torch import Tensor

from peer.compute.machine import DeviceName, cores, find_device
from peer.export.collected import collect
from peer.model.language_model import LanguageModel, Sampling, generate
from peer.optim.grid import to_float
from peer.process import Terminal, told
from protocol.errors import UserError
from protocol.manifest import Model
from protocol.run.hugging_face import CONFIG, open_checkpoint
from protocol.run.run_files import DESCRIPTOR, TOKENIZER
from protocol.run.tokenizer import encode, read_tokenizer

UNFINISHED = "\ufffd"
"""What stands at the end of a text for a character of which more tokens are to come."""


@dataclass(frozen=True, slots=True)
class SampleOptions:
    """What the command line said. `seed` None: a random one. 0 threads are all cores."""

    checkpoint: Path
    prompt: str
    tokens: int
    sampling: Sampling
    seed: int | None
    device: DeviceName
    threads: int


def sample(options: SampleOptions, terminal: Terminal) -> int:
    """Write text as it comes; the exit code."""

    def work() -> int:
        torch.set_num_threads(options.threads or cores())
        with Console(stderr=True).status("loading the model"):
            model, tokenizer = _load(options)
        prompt = encode(tokenizer, options.prompt) or [model.sizes.end_of_text]
        if len(prompt) >= model.sizes.context:
            raise UserError(f"the prompt has {len(prompt)} tokens, and the model reads {model.sizes.context} at most")
        seed = random.getrandbits(32) if options.seed is None else options.seed
        written, shown = [], 0
        _show(options.prompt, terminal)
        for token in generate(model, prompt, options.tokens, options.sampling, seed):
            written.append(token)
            text = _text(tokenizer, prompt, written)
            whole = text.rstrip(UNFINISHED)
            _show(whole[shown:], terminal)
            shown = max(shown, len(whole))
        text = _text(tokenizer, prompt, written)
        _show(text[shown:] + "\n", terminal)
        if terminal.json:
            stopped = _stopped(written, options.tokens, model.sizes)
            found = {"prompt": options.prompt, "text": text, "tokens": written, "seed": seed, "stopped": stopped}
            print(json.dumps(found), flush=True)
        return 0

    return told(terminal.emit, work)


def _text(tokenizer: Tokenizer, prompt: list[int], written: list[int]) -> str:
    """What stands behind the prompt. Decoded with it, as some tokenizers drop a space at the beginning of a text."""
    before, all_of_it = tokenizer.decode(prompt), tokenizer.decode(prompt + written)
    return all_of_it[len(before) :]


def _show(text: str, terminal: Terminal) -> None:
    """To a person, as it comes."""
    if not terminal.json:
        print(text, end="", flush=True)


def _stopped(written: list[int], most: int, sizes: Model) -> str:
    """Why no more came."""
    if written and written[-1] == sizes.end_of_text:
        return "end of text"
    return "tokens" if len(written) == most else "context"


PromptReader = Callable[[str], Tensor]
"""A weight, by its name."""


def _load(options: SampleOptions) -> tuple[LanguageModel, Tokenizer]:
    """A model of an export, of any other checkpoint that a run could begin from, or of a peer's folder.

    Raises:
        UserError: it is none of these, or not whole.
    """
    folder = options.checkpoint.expanduser()
    of_a_peer = (folder / DESCRIPTOR).exists() and not (folder / CONFIG).exists()
    sizes, tokenizer, read = (_of_a_run if of_a_peer else _of_a_checkpoint)(folder)
    with find_device(options.device):
        model = LanguageModel(sizes)
    model.load(read)
    return model, read_tokenizer(tokenizer, sizes.vocabulary)


def _of_a_checkpoint(folder: Path) -> tuple[Model, Path, PromptReader]:
    found = open_checkpoint(folder)
    return found.model, found.tokenizer, lambda name: torch.from_numpy(found.read(name))


def _of_a_run(folder: Path) -> tuple[Model, Path, PromptReader]:
    found = collect([folder], None, lambda event: None)
    grids = {name: tensor for grid in found.grids.values() for name, tensor in grid.items()}
    return found.descriptor.manifest.model, found.file(TOKENIZER), lambda name: to_float(grids[name])
