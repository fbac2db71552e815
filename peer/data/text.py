"""A run's text where all of it is on this machine."""

from pathlib import Path

from peer.data.batches import Text
from peer.data.blocks import BlockedTokens, local_blocks
from peer.data.tokens import open_tokens
from protocol.errors import ResourceError
from protocol.run.prepared import linked, open_folder
from protocol.run.run_files import HELD_OUT, TRAIN, Descriptor


def open_text(descriptor: Descriptor, directory: Path) -> tuple[Text, Text]:
    """What is trained on, and what is held out.

    Raises:
        FormatError: a file is damaged, or holds an id that is not in the vocabulary.
        ResourceError: a file cannot be read, or the prepared folder is gone.
    """
    vocabulary = descriptor.manifest.model.vocabulary
    if not descriptor.prepared:
        return open_tokens(directory / TRAIN, vocabulary), open_tokens(directory / HELD_OUT, vocabulary)
    folder = linked(directory)
    if folder is None:
        raise ResourceError("the prepared text of this run is not where it was on this machine: name it with --data")
    dataset = open_folder(folder)
    blocks = local_blocks(dataset, folder)
    return BlockedTokens(dataset.train, blocks), BlockedTokens(dataset.held_out, blocks)
