"""Readers of a checkpoint that a run is to begin from: a stranger may have made it."""

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from bootstrap.data.encoding import train_tokenizer
from peer.store.checkpoint import SETTLED, Settled, last_settled
from protocol.errors import UserError
from protocol.layout import EMBEDDING_TENSOR, whole_layout
from protocol.model_sizes import NgramTables
from protocol.run.hugging_face import BASIS_OF_THE_RUN, CONFIG, INDEX, WEIGHTS, open_checkpoint, read_tokenizer
from protocol.run.model_config import config_of
from protocol.run.run_files import TOKENIZER
from tests.fuzz.material import MANIFEST, folder, from_file
from tests.fuzz.reader import Reader

MODEL = MANIFEST.model
TENSORS = {name: np.full(shape, 0.5, np.float32) for name, shape in whole_layout(MODEL, NgramTables()).items()}
FILES = {CONFIG: json.dumps(config_of(MODEL)).encode(), WEIGHTS: save(TENSORS)}
INDEXED = json.dumps({"weight_map": dict.fromkeys(TENSORS, "part.safetensors")}).encode()
BASIS = save({"basis": np.eye(MODEL.d, dtype=np.float32)})
FOUND = MODEL.d, "model.norm.weight", hashlib.sha256(TENSORS[EMBEDDING_TENSOR].tobytes()).hexdigest()
DONE = Settled(round=3, digests={"embedding": "ab" * 32})


def checkpoint(name: str) -> Callable[[bytes], object]:
    """What a run finds in a checkpoint, given one of the files; the others are whole."""
    here = folder() / "checkpoint" / name.replace("/", "-")

    def read(data: bytes) -> object:
        files = FILES | {name: data}
        if name == INDEX:
            files = {CONFIG: files[CONFIG], "part.safetensors": files[WEIGHTS], INDEX: data}
        for each, content in files.items():
            (here / each).parent.mkdir(parents=True, exist_ok=True)
            (here / each).write_bytes(content)
        found = open_checkpoint(here)
        found.basis()
        units = {each: found.units(each) for each in found.layout}
        digest = hashlib.sha256((units[EMBEDDING_TENSOR] / np.float32(2**26)).astype(np.float32).tobytes())
        return found.model.d, list(units)[-2], digest.hexdigest()

    return read


@functools.cache
def tokenizer() -> bytes:
    return train_tokenizer(["A small text for a small tokenizer."], 300).to_str().encode()


def read_tokens(path: Path) -> list[int]:
    return read_tokenizer(path, 300).encode("A text", add_special_tokens=False).ids


CHECKPOINTS = (
    Reader("checkpoint's config", checkpoint(CONFIG), ((FILES[CONFIG], FOUND),), "json", (UserError,)),
    Reader("checkpoint's weights", checkpoint(WEIGHTS), ((FILES[WEIGHTS], FOUND),), "bytes", (UserError,)),
    Reader("checkpoint's index", checkpoint(INDEX), ((INDEXED, FOUND),), "json", (UserError,)),
    Reader("checkpoint's basis", checkpoint(BASIS_OF_THE_RUN), ((BASIS, FOUND),), "bytes", (UserError,)),
    Reader(
        "checkpoint's tokenizer",
        from_file(f"tokenizer/{TOKENIZER}", read_tokens),
        ((tokenizer(), train_tokenizer(["A small text for a small tokenizer."], 300).encode("A text").ids),),
        "json",
        (UserError,),
    ),
    Reader(
        "round that is settled",
        from_file(f"settled/{SETTLED}", lambda path: last_settled(path.parent)),
        ((DONE.model_dump_json().encode(), DONE),),
        "json",
        (),
    ),
)
