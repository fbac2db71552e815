"""A run on prepared text: what of the folder becomes the run's, and the blocks that the node hands out."""

from pathlib import Path

from protocol.errors import FormatError, ManifestError, ResourceError, UserError
from protocol.files import write_atomically
from protocol.manifest import Manifest
from protocol.net.blobs import Blob, Lookup, Slice
from protocol.run.dataset import BLOCKS, DATA, DIGEST_BYTES
from protocol.run.hugging_face import ModelFolder
from protocol.run.prepared import check_tokenizer, linked, note_prepared_text, open_folder
from protocol.run.run_files import TOKENIZER, Descriptor, measure_file


def take(manifest: Manifest, folder: Path, directory: Path, checkpoint: ModelFolder | None = None) -> str:
    """Make the text in `folder` a run's: its files but the shards are copied into `directory`. Returns what it is, in a
    sentence.

    Raises:
        ManifestError: the model is not for this text.
        UserError: the `checkpoint` that the run begins from has another tokenizer.
        ResourceError: the folder is damaged, or has too little text.
    """
    try:
        dataset = open_folder(folder)
        dataset.manifest.require_blocks(manifest.tokens_per_step)
    except FormatError as error:
        raise ResourceError(str(error)) from None
    prepared, context = dataset.manifest, manifest.model.context
    if manifest.model.vocabulary < prepared.vocabulary:
        raise ManifestError(
            f"model.vocabulary = {manifest.model.vocabulary}, but the text in {folder} has token ids up to "
            f"{prepared.vocabulary - 1}: set it to {prepared.vocabulary}, or a little more"
        )
    check_tokenizer(folder, dataset)
    if manifest.model.end_of_text != prepared.end_of_text:
        raise ManifestError(
            f"model.end_of_text = {manifest.model.end_of_text}, but what ends each text in {folder} is token "
            f"{prepared.end_of_text}: set it to that"
        )
    if checkpoint is not None and measure_file(checkpoint.tokenizer).sha256 != prepared.tokenizer:
        raise UserError(
            f"the text in {folder} was prepared with another tokenizer than the checkpoint's: prepare it again with "
            f"--tokenizer {checkpoint.tokenizer}"
        )
    for name, stream in (("train on", dataset.train), ("hold out", dataset.held_out)):
        if stream.tokens <= context:
            raise ResourceError(f"too little text: {stream.tokens} tokens to {name}, a sequence takes {context + 1}")
    for name in (TOKENIZER, DATA, BLOCKS):
        write_atomically(directory / name, (folder / name).read_bytes())
    note_prepared_text(directory, folder)
    return (
        f"The text is the prepared folder {folder}: {dataset.train.tokens / 1e6:.1f} million tokens to train on, "
        f"{dataset.held_out.tokens / 1e6:.2f} million held out."
    )


def lookup(descriptor: Descriptor, directory: Path) -> Lookup:
    """The run's files by their SHA-256; of prepared text that is on this machine, every block, too."""
    files = {file.sha256: directory / file.name for file in descriptor.files}
    folder = linked(directory) if descriptor.prepared else None
    if folder is None:
        return files.get
    dataset = open_folder(folder)
    digests = dataset.digests
    numbers = {
        digests[DIGEST_BYTES * block_number : DIGEST_BYTES * (block_number + 1)]: block_number
        for block_number in range(dataset.blocks)
    }

    def find(sha256: str) -> Blob | None:
        try:
            number = numbers.get(bytes.fromhex(sha256))
        except ValueError:
            number = None
        if number is None:
            return files.get(sha256)
        block = dataset.block(number)
        return Slice(folder / block.shard, block.offset, block.size)

    return find
