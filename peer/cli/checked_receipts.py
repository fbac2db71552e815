"""A peer's receipts, checked against the run's id and its operator's key alone, and shown."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from peer.store.receipt_file import RECEIPTS, files, lines
from peer.store.served import ContributionStore
from protocol.errors import FormatError, ResourceError
from protocol.identity import PeerId
from protocol.manifest import Manifest
from protocol.outer.window import Window
from protocol.run.run_files import Descriptor, read_kept
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority
from protocol.trust.proofs import read_revocation
from protocol.trust.receipts import Receipt, RoundCredit, Verifier, by_round, from_line, microbatch_tokens

KEY_FILE = "identity.key"

MOST_REFUSED = 20
"""So many of those that do not hold are told one by one."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line of a file that is no receipt of this peer's, and why."""

    file: str
    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Checked:
    """The contents of some files: the receipts that hold, each with its bytes, and the lines that do not."""

    verifier: Verifier
    manifest: Manifest
    receipts: dict[Receipt, bytes]
    refused: list[Refusal]

    @property
    def rounds(self) -> list[RoundCredit]:
        """The credit of each round that the receipts show."""
        return by_round(self.receipts)


def check_receipts(folder: Path, given: tuple[Path, ...] = ()) -> Checked:
    """The receipts in a peer's folder, or those `given`, all of one peer, which is the first that one names.

    Raises:
        ResourceError: the folder is no peer's, or a file cannot be read.
    """
    descriptor = read_kept(folder)
    me = None if given else _identity(folder)
    verifier = _verifier(descriptor, folder, me)
    found: dict[Receipt, bytes] = {}
    refused: list[Refusal] = []
    for path, number, line in _all_lines(given or files(folder / RECEIPTS), whole=bool(given)):
        try:
            data = from_line(line)
            receipt = verifier.check(data)
        except FormatError as error:
            refused.append(Refusal(path.name, number, str(error)))
            continue
        found.setdefault(receipt, data)
        if verifier.receiver is None:
            verifier = _verifier(descriptor, folder, receipt.receiver)
    return Checked(verifier, descriptor.manifest, found, refused)


def _identity(folder: Path) -> PeerId:
    if not (folder / KEY_FILE).is_file():
        raise ResourceError(f"{folder} is no peer's folder: it has no {KEY_FILE}")
    return load_or_create(folder).peer_id


def _verifier(descriptor: Descriptor, folder: Path, receiver: PeerId | None) -> Verifier:
    """A verifier with the revocations that this folder knows: it cannot know those of others."""
    authority = Authority(descriptor.run_id, descriptor.operator)
    revoked: dict[PeerId, int] = {}
    for signed in ContributionStore(folder / "contributions").revocations():
        try:
            record = read_revocation(signed, authority)
        except FormatError:
            continue
        start = record.effective(Window.of(descriptor.manifest))
        revoked[record.author] = min(start, revoked.get(record.author, start))
    return Verifier(authority, receiver, revoked, microbatch_tokens(descriptor.manifest))


def _all_lines(paths: Iterable[Path], whole: bool) -> Iterator[tuple[Path, int, bytes]]:
    for path in paths:
        for number, line in enumerate(lines(path, whole), 1):
            yield path, number, line


# Showing


def why(credit: RoundCredit, checked: Checked) -> str:
    """A phrase that says whether a round's contribution counted, and if not, why, as far as receipts tell."""
    if credit.contradicted:
        return "unclear: signers name different contributions"
    if credit.counted_by:
        return f"counted: {credit.steps} steps, signed by {_names(credit.counted_by)}"
    window, newest = Window.of(checked.manifest), max(each.round for each in checked.rounds)
    if credit.round + window.width > checked.manifest.outer.rounds:
        return "one of the run's last rounds, which are never closed"
    if not window.is_past(newest, credit.round):
        return f"not closed yet: it is in round {credit.round + window.width + 1}"
    return "nobody has signed that it counted"


def to_json(checked: Checked) -> dict[str, Any]:
    """The receipts and their credit, for a program."""
    rounds = [
        {
            "round": each.round,
            "tokens": each.tokens,
            "tokens_of_both": each.tokens_of_both,
            "microbatches": each.microbatches,
            "neighbours": list(each.neighbours),
            "counted": each.counts,
            "counted_by": list(each.counted_by),
            "steps": each.steps,
            "why": why(each, checked),
        }
        for each in checked.rounds
    ]
    return {
        "run": checked.verifier.run,
        "operator": checked.verifier.authority.operator,
        "peer": checked.verifier.receiver,
        "rounds": rounds,
        "tokens": sum(each.tokens for each in checked.rounds),
        "tokens_of_both": sum(each.tokens_of_both for each in checked.rounds),
        "rounds_counted": sum(each.counts for each in checked.rounds),
        "receipts": len(checked.receipts),
        "refused": [{"file": each.file, "line": each.line, "why": each.why} for each in checked.refused],
    }


def draw(checked: Checked) -> None:
    """Print for a person what each round's receipts show, and the lines that do not hold."""
    console, rounds = Console(highlight=False), checked.rounds
    if rounds:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("round", "tokens", "microbatches"):
            table.add_column(name, justify="right")
        table.add_column("seen by", overflow="fold")
        table.add_column("contribution", overflow="fold")
        for each in rounds:
            cells = str(each.round), f"{each.tokens:,}", str(each.microbatches)
            table.add_row(*cells, _names(each.neighbours), Text(why(each, checked)))
        console.print(table)
        total, both = (sum(counts) for counts in zip(*((e.tokens, e.tokens_of_both) for e in rounds), strict=True))
        counted = sum(each.counts for each in rounds)
        on_both_sides = f", {both:,} of them seen by neighbours on both sides" if both else ""
        said = f"{total:,} tokens in {len(rounds)} rounds{on_both_sides}; {counted} contributions counted."
        console.print(said, soft_wrap=True)
    verifier, refused = checked.verifier, checked.refused
    for one in refused[:MOST_REFUSED]:
        console.print(Text(f"{one.file}, line {one.line}: {one.why}"), soft_wrap=True)
    if len(refused) > MOST_REFUSED:
        console.print(f"… and {len(refused) - MOST_REFUSED} more.")
    whose = f"peer {verifier.receiver[-8:]}" if verifier.receiver else "nobody"
    if not rounds and not refused:
        console.print(f"There are no receipts for {whose} of run {verifier.run[:12]} yet.")
        return
    held = f"{len(refused)} do NOT hold, {len(checked.receipts)} do" if refused else ""
    console.print(
        f"Verified offline against run {verifier.run[:12]}, operator {verifier.authority.operator[-8:]}, for {whose}: "
        + (held or f"all {len(checked.receipts)} receipts hold."),
        soft_wrap=True,
    )


def _names(peers: Iterable[PeerId]) -> str:
    return ", ".join(each[-8:] for each in peers) or "–"
