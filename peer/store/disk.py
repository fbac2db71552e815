"""What a peer keeps on this machine's disk for its run: how much at most, and whether its owner has and gives so much.

Files of the run and states of its parts have sizes that follow from the manifest, so they are summed up before anything
is fetched. What may be more than an honest run has, are contributions (an open run may have any number of names, and
each may contribute) and the cache of blocks: they get what is left of the limit, and no more.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.store.checkpoint import KEPT
from peer.store.snapshots import ASKED_KEPT, SNAPSHOTS_KEPT
from peer.telemetry.units import size
from protocol.codec.contribution import max_bytes
from protocol.errors import ResourceError
from protocol.files import LOG_BYTES
from protocol.identity import Part
from protocol.layout import elements, model_layout, parts_authored, parts_followed
from protocol.manifest import Manifest
from protocol.outer.window import SKEW, Window
from protocol.run.run_files import Descriptor

TRAINED_BYTES = 24
"""Of a trained value in a checkpoint: error feedback and AdamW's two moments; and as much of what is set aside for a
successor."""

SIGNED_BYTES = 8 * 1024
"""Beside a contribution: its proof and receipts, and what is left of its last block on the disk."""

STATE_BYTES = 4
STATES = SNAPSHOTS_KEPT + ASKED_KEPT + 1
"""Of each followed part, while one is made."""

OTHER_BYTES = 2 * LOG_BYTES + 64 * 2**20
"""The log; and keys, addresses, and receipts of twenty thousand rounds."""

SHARE = 0.9
"""Of what is free, where the owner has set no limit: no run fills a disk."""


@dataclass(frozen=True, slots=True)
class Space:
    """In bytes: what a place in the run keeps beside contributions; what contributions of all the run's replicas take;
    and how much all of it may be."""

    fixed: int
    contributions: int
    limit: int

    @property
    def needed(self) -> int:
        return self.fixed + self.contributions

    def cache(self, wanted: int) -> int:
        """For blocks of text: as wanted, if there is so much."""
        return max(0, min(wanted, self.limit - self.needed))

    def contribution_store(self, cache: int) -> int:
        """For contributions: all that is left."""
        return self.limit - self.fixed - cache


def fixed_bytes(manifest: Manifest, stage: int | None, trains: bool, files: int) -> int:
    """What a volunteer of a stage (None: who has the whole model) keeps beside the contributions; `trains`: all but
    observers do; `files`: of the run's."""
    layouts = model_layout(manifest)
    authored = (list(layouts) if stage is None else parts_authored(stage)) if trains else []
    trained = sum(elements(layouts[part]) for part in authored)
    followed = sum(elements(layouts[part]) for part in _followed(manifest, stage))
    own = sum(max_bytes(manifest, part) for part in authored)
    checkpoints = (KEPT + 1) * (TRAINED_BYTES * trained + own)
    return files + checkpoints + STATES * STATE_BYTES * followed + OTHER_BYTES


def contribution_bytes(manifest: Manifest, stage: int | None) -> int:
    """Of all replicas, at most: those to open rounds, and to as many closed ones as take the bytes of a state."""
    outer, layouts = manifest.outer, model_layout(manifest)
    open_rounds = Window(outer.grace, outer.liars).width + SKEW + 1
    total = 0
    for part in _followed(manifest, stage):
        largest = max_bytes(manifest, part)
        closed = STATE_BYTES * elements(layouts[part]) // largest
        total += (open_rounds * manifest.replicas.total + closed) * (largest + SIGNED_BYTES)
    return total


def _followed(manifest: Manifest, stage: int | None) -> list[Part]:
    return list(model_layout(manifest)) if stage is None else parts_followed(manifest, stage)


def space_in(
    folder: Path, descriptor: Descriptor, names: Sequence[str], stage: int | None, trains: bool, most: int | None
) -> Space:
    """The space that a place in a run takes, and has. `names`: the run's files that it fetches; `most`: bytes that its
    owner gives. Looks at every file in the folder: off the event loop."""
    manifest, files = descriptor.manifest, sum(descriptor.file(name).size for name in names)
    limit = most if most is not None else bytes_in(folder) + int(SHARE * free_bytes(folder))
    return Space(fixed_bytes(manifest, stage, trains, files), contribution_bytes(manifest, stage), limit)


def require_space(space: Space, folder: Path, what: str, limited: bool) -> None:
    """Check that a place fits the disk, before anything is fetched. `what` is the place, in words; `limited`: by
    --max-disk.

    Raises:
        ResourceError: it does not; the message names what would be needed and what there is.
    """
    if limited and space.needed > space.limit:
        raise ResourceError(
            f"--max-disk {size(space.limit)} is not enough for {what}, which keeps up to {size(space.needed)}: "
            "give it as much, or join another stage or run"
        )
    free, there = free_bytes(folder), bytes_in(folder)
    if space.needed > there + int(SHARE * free):
        raise ResourceError(
            f"not enough disk for {what}, which keeps up to {size(space.needed)}: {folder} has {size(there)} of it and "
            f"{size(free)} are free, a tenth of which stays free; make room, or give another disk's folder with --dir"
        )


def free_bytes(folder: Path) -> int:
    """Where a folder is, or would be."""
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    return shutil.disk_usage(there).free


def bytes_in(folder: Path) -> int:
    """All that is in a folder now."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # it has been removed since
            continue
    return total
