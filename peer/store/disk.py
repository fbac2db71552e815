"""The files that a peer keeps on this machine's disk for its run: how much at most, and whether its owner has and gives
so much.

Files of the run and states of its parts have sizes that follow from the manifest, so they are summed up before anything
is fetched. What may be more than an honest run has, are contributions (an open run may have any number of names, and
each may contribute) and the cache of blocks: they get what is left of the limit, and no more.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.store.served import ASKED_KEPT, SNAPSHOTS_KEPT
from protocol.codec.contribution import max_bytes
from protocol.errors import ResourceError, Shortage
from protocol.files import LOG_BYTES
from protocol.identity import Part, parts_authored
from protocol.layout import elements, model_layout, parts_followed
from protocol.manifest import Manifest
from protocol.outer.window import SKEW, Window
from protocol.run.run_files import Descriptor
from protocol.wording import megabytes_above, size

CHECKPOINT_BYTES = 24
"""Bytes of each trained value in a checkpoint: error feedback and AdamW's two moments, and as much again of what is set
aside for a successor."""

SIGNED_ON_DISK_BYTES = 8 * 1024
"""Bytes beside a contribution: its proof and receipts, and what is left of its last block on the disk."""

CHECKPOINTS_KEPT = 2
"""Checkpoints on the disk: if the last one is damaged, the one before is taken."""

STATE_BYTES = 4
STATES = SNAPSHOTS_KEPT + ASKED_KEPT + 1
"""States of each followed part on the disk, while one is made."""

OTHER_BYTES = 2 * LOG_BYTES + 64 * 2**20
"""Bytes of the log; and of keys, addresses, and receipts of twenty thousand rounds."""

SHARE = 0.9
"""The share of what is free that a run may fill where the owner has set no limit."""


@dataclass(frozen=True, slots=True)
class Space:
    """The limits of a peer's disk, in bytes: what a place in the run keeps beside contributions; what contributions of
    all the run's replicas take; and how much all of it may be."""

    fixed: int
    contributions: int
    limit: int

    @property
    def needed(self) -> int:
        return self.fixed + self.contributions

    def cache(self, wanted: int) -> int:
        """The bytes for blocks of text: as many as wanted, if there are so many."""
        return max(0, min(wanted, self.limit - self.needed))

    def contribution_store(self, cache: int) -> int:
        """The bytes for contributions: all that a cache of so many leaves."""
        return self.limit - self.fixed - cache


def kept_bytes(manifest: Manifest, stage: int | None, trains: bool, files: int) -> int:
    """The bytes that a volunteer of a stage (None: who has the whole model) keeps beside the contributions. `trains`:
    it trains, as all but observers do; `files`: bytes of the run's files."""
    layouts = model_layout(manifest)
    authored = (list(layouts) if stage is None else parts_authored(stage)) if trains else []
    trained = sum(elements(layouts[part]) for part in authored)
    followed = sum(elements(layouts[part]) for part in _followed(manifest, stage))
    own = sum(max_bytes(manifest, part) for part in authored)
    checkpoints = (CHECKPOINTS_KEPT + 1) * (CHECKPOINT_BYTES * trained + own)
    return files + checkpoints + STATES * STATE_BYTES * followed + OTHER_BYTES


def contribution_bytes(manifest: Manifest, stage: int | None) -> int:
    """The most bytes that the contributions of all replicas take: to open rounds, and to closed ones of a state's
    bytes."""
    outer, layouts = manifest.outer, model_layout(manifest)
    open_rounds = Window(outer.grace, outer.liars).width + SKEW + 1
    total = 0
    for part in _followed(manifest, stage):
        largest = max_bytes(manifest, part)
        closed = STATE_BYTES * elements(layouts[part]) // largest
        total += (open_rounds * manifest.replicas.total + closed) * (largest + SIGNED_ON_DISK_BYTES)
    return total


def _followed(manifest: Manifest, stage: int | None) -> list[Part]:
    return list(model_layout(manifest)) if stage is None else parts_followed(manifest, stage)


def bytes_to_fetch(folder: Path, descriptor: Descriptor, names: Sequence[str], stage: int | None, state: bool) -> int:
    """The most bytes that a peer fetches before it can help: of the run's files of these names, those that its folder
    lacks; and with `state` that of its parts after a round. Looks at the folder: off the event loop."""
    manifest, layouts = descriptor.manifest, model_layout(descriptor.manifest)
    files = [descriptor.file(name) for name in names if not (folder / name).is_file()]
    followed = sum(elements(layouts[part]) for part in _followed(manifest, stage)) if state else 0
    return sum(file.size for file in files) + STATE_BYTES * followed


def space_in(
    folder: Path, descriptor: Descriptor, names: Sequence[str], stage: int | None, trains: bool, most: int | None
) -> Space:
    """The space that a place in a run takes, and has. `names`: the run's files that it fetches; `most`: bytes that its
    owner gives. Looks at every file in the folder: off the event loop."""
    manifest, files = descriptor.manifest, sum(descriptor.file(name).size for name in names)
    limit = most if most is not None else bytes_in(folder) + int(SHARE * free_disk(folder))
    return Space(kept_bytes(manifest, stage, trains, files), contribution_bytes(manifest, stage), limit)


def require_space(space: Space, folder: Path, what: str, limited: bool) -> None:
    """Check that a place fits the disk, before anything is fetched. `what` is the place, in words; `limited`: by
    --max-disk.

    Raises:
        ResourceError: it does not; the message names what would be needed and what there is.
    """
    if limited and space.needed > space.limit:
        raise ResourceError(
            f"--max-disk {size(space.limit)} is not enough for {what}, which keeps up to {size(space.needed)}: "
            "give it as much, or join another stage or run",
            Shortage(
                f"{size(space.needed)} of disk, and --max-disk gives {size(space.limit)}",
                f"give --max-disk {megabytes_above(space.needed)}",
            ),
        )
    free, bytes_here = free_disk(folder), bytes_in(folder)
    if space.needed > (usable := bytes_here + int(SHARE * free)):
        raise ResourceError(
            f"not enough disk for {what}, which keeps up to {size(space.needed)}: {folder} has {size(bytes_here)} of "
            f"it and {size(free)} are free, a tenth of which stays free; make room, or give another disk's folder with "
            "--dir",
            Shortage(
                f"{size(space.needed)} of disk, and {size(usable)} can be had",
                "make room, or give another disk's folder with --dir",
            ),
        )


def free_disk(folder: Path) -> int:
    """The free bytes of the disk that a folder is on, or would be on."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(there).free


def bytes_in(folder: Path) -> int:
    """The bytes of all files in a folder and below it now."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # it has been removed since
            continue
    return total
