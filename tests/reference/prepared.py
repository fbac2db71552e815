"""A small folder of prepared text, in many blocks."""

from pathlib import Path

from bootstrap.data.prepare import PrepareRequest, prepare_text
from protocol.run.prepared import open_folder

BLOCK_TOKENS = 64


def write_texts(folder: Path, documents: int = 40) -> Path:
    """Some texts that say who they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(documents):
        lines = [f"In chapter {number} there are {word} of them, and {word * number} more.\n" for word in range(20)]
        (folder / f"{number:03}.txt").write_text("".join(lines))
    return folder


def small_prepared(folder: Path, shard_blocks: int = 50, **wanted: object) -> Path:
    """`folder`/prepared, with a vocabulary of 300 tokens and several shards of small blocks."""
    out = folder / "prepared"
    texts = write_texts(folder / "texts")
    asked = {"train_tokenizer": 300, "block_tokens": BLOCK_TOKENS, "shard_blocks": shard_blocks} | wanted
    prepare_text(PrepareRequest([str(texts)], **asked), out, lambda doing, done, total: None)  # type: ignore[arg-type]
    assert len(open_folder(out).manifest.shards) > 1
    return out
