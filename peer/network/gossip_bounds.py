"""The bounds of gossip's messages, checked before anything in them."""

from collections.abc import Sequence

from protocol.errors import FormatError
from protocol.limits import (
    ENTRIES_NAMED,
    HOLDERS_NAMED,
    KEYS_NAMED,
    PARTS_BESIDE_STAGES,
    PROOF_BYTES,
    REVOCATIONS_NAMED,
    ROUNDS_NAMED,
)
from protocol.manifest import Manifest
from protocol.outer.window import Window
from protocol.schemas import reconciliation_pb2 as pb


def require_differences(news: pb.Differences, manifest: Manifest) -> None:
    """Check the bounds of an answer.

    Raises:
        FormatError: it names more than there can be.
    """
    _require_keys(news.parts, manifest)
    _require("revocations", len(news.revocations), REVOCATIONS_NAMED)
    _require("records of holders", len(news.holders), HOLDERS_NAMED)


def require_news(news: pb.News, manifest: Manifest) -> None:
    """Check the bounds of news.

    Raises:
        FormatError: they name more than there can be.
    """
    _require_keys(news.held, manifest)
    _require("entries", len(news.entries), ENTRIES_NAMED)
    longest = PROOF_BYTES * (1 + Window.of(manifest).most_told)
    for entry in news.entries:
        _require("bytes of an entry", entry.ByteSize(), longest)
    _require("revocations", len(news.revocations), REVOCATIONS_NAMED)


def require_revocations(news: pb.Revocations, manifest: Manifest) -> None:
    """Check the number of revocations.

    Raises:
        FormatError: there are more than there can be.
    """
    _require("revocations", len(news.revocations), REVOCATIONS_NAMED)


def require_comparison(asked: pb.Comparison, manifest: Manifest) -> None:
    """Check the bounds of a comparison.

    Raises:
        FormatError: it names more than there can be.
    """
    _require_parts([part_summary.part for part_summary in asked.parts], manifest)
    for part_summary in asked.parts:
        _require(f"rounds of {part_summary.part[:40]}", len(part_summary.rounds), ROUNDS_NAMED)


def _require_keys(named: Sequence[pb.PartKeys], manifest: Manifest) -> None:
    _require_parts([part_keys.part for part_keys in named], manifest)
    _require("keys", sum(len(part_keys.keys) for part_keys in named), KEYS_NAMED)


def _require_parts(named: Sequence[str], manifest: Manifest) -> None:
    _require("parts", len(named), manifest.replicas.stages + PARTS_BESIDE_STAGES)
    if len(set(named)) < len(named):
        raise FormatError("a message that names one part twice")


def _require(what: str, count: int, most: int) -> None:
    if count > most:
        raise FormatError(f"a message with {count} {what}, where {most} are allowed")
