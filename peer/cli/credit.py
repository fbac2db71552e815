"""`hetpeer credit`: what others have signed of a peer's work, and which of its rounds count in the states that a folder
holds, checked without asking anybody."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peer.cli.options import takes, terminal
from protocol.errors import FormatError, ResourceError
from protocol.wording import so_many

if TYPE_CHECKING:
    from peer.process import Terminal
    from protocol.codec.snapshot import Header
    from protocol.identity import PeerId
    from protocol.manifest import Manifest
    from protocol.run.run_files import Descriptor
    from protocol.trust.receipts import RoundCredit, Verifier, Work

KEY_FILE = "identity.key"

CREDIT_ROUNDS = 20
"""The last rounds that a person sees, each on a line."""

MOST_REFUSED = 20
"""The largest number of invalid receipts that are named one by one."""

CREDIT_EXAMPLES = (
    "Examples:\n\n  hetpeer credit\n\n  hetpeer credit ~/peer --json\n\n  hetpeer credit ~/peer --out mine.receipts\n\n"
    "  hetpeer credit --verify theirs.receipts\n\n"
    "Nobody is asked: receipts are signed, and so are their signers' places in the run. The exit code is 7 if one does "
    "not hold."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditOptions:
    """The options of `hetpeer credit`."""

    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="The peer's folder. Default: that which was at work last."),
    ] = None
    verify: Annotated[
        list[Path] | None,
        typer.Option(
            "--verify",
            metavar="FILE",
            help="Check another peer's receipts instead, in a file that it gave you. FOLDER then says of which run; it "
            "is not needed if this machine knows only one.",
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write those that hold to one file, for others to check."),
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False


@takes(CreditOptions)
def credit(options: CreditOptions) -> None:
    """Show what a peer gave to its run, by what other peers have signed, and check every signature."""
    sys.exit(show_credit(options, terminal(options.json)))


def show_credit(options: CreditOptions, terminal: "Terminal") -> int:
    """Check the receipts, show what they come to, and write those that hold; the exit code."""
    import json

    from peer.process import exit_code_of
    from protocol.files import write_atomically
    from protocol.trust.receipts import receipt_to_line, standing

    def work() -> int:
        verified_paths = tuple(options.verify or ())
        folder = (options.folder or (_any_folder() if verified_paths else _newest_folder(terminal))).expanduser()
        checked = check_receipts(folder, verified_paths)
        if options.out is not None:
            valid_receipts = standing(checked.receipts)
            write_atomically(
                options.out, b"".join(receipt_to_line(checked.receipts[receipt_key]) for receipt_key in valid_receipts)
            )
        if terminal.json:
            print(json.dumps(to_json(checked)), flush=True)
        else:
            print_credit(checked)
        return FormatError.exit_code if checked.refused else 0

    return exit_code_of(terminal.emit, work)


def _newest_folder(terminal: "Terminal") -> Path:
    """The folder of the peer of this machine whose receipts were written last; or, if none has any, whose states were.
    Where there are several, the choice is shown."""
    from peer.cli.tables import console_for_people
    from peer.store.home import home, peer_folders
    from peer.store.receipt_file import RECEIPTS
    from peer.telemetry.terminal import print_text

    folders = peer_folders(None)
    run_folders = [folder for folder in folders if (folder / RECEIPTS).is_dir()]
    run_folders = run_folders or [folder for folder in folders if (folder / "snapshots").is_dir()]
    if not run_folders:
        raise ResourceError(f"no peer under {home()} has receipts; name its folder: `hetpeer credit FOLDER`")
    newest = max(run_folders, key=_written)
    if len(run_folders) > 1 and not terminal.json:
        others = ", ".join(str(folder) for folder in run_folders if folder != newest)
        print_text(console_for_people(), f"Of the peer in {newest} (it was at work last; others: {others})")
    return newest


def _written(folder: Path) -> float:
    """The time at which a peer's receipts or states were written last, in Unix seconds; 0: it has none."""
    from peer.store.receipt_file import RECEIPTS

    paths = (*(folder / RECEIPTS).glob("*"), *(folder / "snapshots").glob("*.header"))
    return max((path.stat().st_mtime for path in paths), default=0.0)


def _any_folder() -> Path:
    """A folder that knows the one run that this machine knows: a peer's, or its bootstrap node's."""
    from peer.store.home import home
    from protocol.run.run_files import DESCRIPTOR, read_kept

    folders_of_runs = {read_kept(path.parent).run_id: path.parent for path in sorted(home().glob(f"**/{DESCRIPTOR}"))}
    if len(folders_of_runs) != 1:
        of = f"more than one run ({len(folders_of_runs)})" if folders_of_runs else "no run"
        among = f", one of {', '.join(map(str, folders_of_runs.values()))}" if folders_of_runs else ""
        raise ResourceError(
            f"there is {of} under {home()}; name a folder with that run's {DESCRIPTOR}{among}: `hetpeer credit FOLDER "
            "--verify FILE`"
        )
    return next(iter(folders_of_runs.values()))


# Checking


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line of a file that is no receipt of this peer's, and why."""

    file: str
    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Checked:
    """The contents of some files: the receipts that hold, each with its bytes, and the lines that do not. The rounds up
    to `closed` are in the states that the folder holds, and those of the peer that are `counted` there, in whichever
    part. `is_alone`: it computes all stages, so nobody is beside it who could sign."""

    verifier: "Verifier"
    manifest: "Manifest"
    receipts: "dict[Work, bytes]"
    refused: list[Refusal]
    counted: frozenset[int] = frozenset()
    closed: int = 0
    is_alone: bool = False

    @property
    def unsigned(self) -> int:
        """The number of rounds that count, and for which nobody has signed."""
        return len(self.counted - {receipt.round for receipt in self.receipts})

    @property
    def rounds(self) -> "list[RoundCredit]":
        """The credit of each round of which there are receipts, or which counts."""
        from protocol.trust.receipts import RoundCredit, by_round

        rounds = {round: RoundCredit(round) for round in self.counted} | {e.round: e for e in by_round(self.receipts)}
        return [rounds[round] for round in sorted(rounds)]


def check_receipts(folder: Path, given: tuple[Path, ...] = ()) -> Checked:
    """The receipts in a peer's folder, or those `given`, all of one peer, which is the first that one names.

    Raises:
        ResourceError: the folder is no peer's, or a file cannot be read.
    """
    from peer.store.receipt_file import RECEIPTS, files, lines
    from protocol.run.run_files import read_kept
    from protocol.trust.keys import load_or_create
    from protocol.trust.receipts import is_retired, receipt_from_line

    descriptor = read_kept(folder)
    if not given and not (folder / KEY_FILE).is_file():
        raise ResourceError(f"{folder} is no peer's folder: it has no {KEY_FILE}")
    verifier = _verifier(descriptor, folder, None if given else load_or_create(folder).peer_id)
    best_receipts: dict[Work, bytes] = {}
    refused: list[Refusal] = []
    paths = given or files(folder / RECEIPTS)
    every = ((path, number, line) for path in paths for number, line in enumerate(lines(path, bool(given)), 1))
    for path, number, line in every:
        try:
            if is_retired(data := receipt_from_line(line)):
                continue
            receipt = verifier.check(data)
        except FormatError as error:
            refused.append(Refusal(path.name, number, str(error)))
            continue
        best_receipts.setdefault(receipt, data)
        if verifier.receiver is None:
            verifier = _verifier(descriptor, folder, receipt.receiver)
    states = newest_states(folder, descriptor.manifest)
    closed = min((state.round for state in states), default=0)
    if verifier.receiver is None:
        return Checked(verifier, descriptor.manifest, best_receipts, refused)
    counted = frozenset(round for state in states for round in state.history.rounds(verifier.receiver))
    is_alone = descriptor.manifest.replicas.stages == 1 or (not given and _role(folder, verifier) == "datacenter")
    return Checked(verifier, descriptor.manifest, best_receipts, refused, counted, closed, is_alone)


def _role(folder: Path, verifier: "Verifier") -> str:
    """The role of a folder's peer, by its card; empty: it has none."""
    from peer.store.membership import read_membership

    try:
        assert verifier.receiver is not None
        return verifier.authority.admitted(verifier.receiver, read_membership(folder).card).role
    except FormatError:
        return ""


def newest_states(folder: Path, manifest: "Manifest") -> "list[Header]":
    """The header of the newest state of each part that a peer's folder holds."""
    from protocol.codec.snapshot import Header, parse_header
    from protocol.identity import Part

    newest: dict[Part, Header] = {}
    for path in sorted((folder / "snapshots").glob("*.header")):  # of each part, the newest comes last
        try:
            header = parse_header(path.read_bytes(), manifest)
        except (OSError, FormatError):
            continue
        newest[header.part] = header
    return list(newest.values())


def _verifier(descriptor: "Descriptor", folder: Path, receiver: "PeerId | None") -> "Verifier":
    """A verifier with the revocations that this folder knows: it cannot know those of others."""
    from peer.store.served import ContributionStore
    from protocol.outer.window import Window
    from protocol.trust.membership_card import Authority
    from protocol.trust.proofs import read_revocation
    from protocol.trust.receipts import Verifier, microbatch_tokens

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


# Showing


def credit_phrase(credit: "RoundCredit", checked: Checked) -> str:
    """A phrase that says whether a round's contribution counts, and if not, why, as far as this folder tells."""
    from protocol.outer.window import Window

    if credit.round in checked.counted:
        return "counted"
    if credit.round <= checked.closed:
        return "counted in no state that this folder holds"
    window = Window.of(checked.manifest)
    if credit.round + window.width > checked.manifest.outer.rounds:
        return "one of the run's last rounds"
    if not checked.closed:
        return "this folder holds no state"
    return f"not closed here yet: it closes after round {credit.round + window.width}"


def to_json(checked: Checked) -> dict[str, Any]:
    """The receipts and their credit, for a program."""
    rounds = [
        {
            "round": round_credit.round,
            "tokens": round_credit.tokens,
            "tokens_of_both": round_credit.tokens_of_both,
            "microbatches": round_credit.microbatches,
            "neighbours": list(round_credit.neighbours),
            "counted": round_credit.round in checked.counted,
            "why": credit_phrase(round_credit, checked),
        }
        for round_credit in checked.rounds
    ]
    return {
        "run": checked.verifier.run,
        "operator": checked.verifier.authority.operator,
        "peer": checked.verifier.receiver,
        "rounds": rounds,
        "tokens": sum(round_credit.tokens for round_credit in checked.rounds),
        "tokens_of_both": sum(round_credit.tokens_of_both for round_credit in checked.rounds),
        "rounds_counted": len(checked.counted),
        "rounds_unsigned": checked.unsigned,
        "receipts": len(checked.receipts),
        "refused": [
            {"file": round_credit.file, "line": round_credit.line, "why": round_credit.why}
            for round_credit in checked.refused
        ],
    }


def print_credit(checked: Checked) -> None:
    """Print for a person what each round's receipts show, and the lines that do not hold."""
    from rich.table import Table
    from rich.text import Text

    from peer.cli.tables import console_for_people
    from peer.telemetry.terminal import print_text

    console, rounds = console_for_people(), checked.rounds
    if rounds:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("round", "tokens", "microbatches"):
            table.add_column(name, justify="right")
        table.add_column("seen by", overflow="fold")
        table.add_column("contribution", overflow="fold")
        for round_credit in rounds[-CREDIT_ROUNDS:]:
            signed = f"{round_credit.tokens:,}", str(round_credit.microbatches)
            cells = str(round_credit.round), *(signed if round_credit.neighbours else ("–", "–"))
            table.add_row(*cells, _names(round_credit.neighbours), Text(credit_phrase(round_credit, checked)))
        console.print(table)
        if len(rounds) > CREDIT_ROUNDS:
            print_text(
                console, f"Before these: {so_many(len(rounds) - CREDIT_ROUNDS, 'round')}, which --json lists, too."
            )
        for line in _summary(checked):
            print_text(console, line)
    verifier, refused = checked.verifier, checked.refused
    for one in refused[:MOST_REFUSED]:
        print_text(console, f"{one.file}, line {one.line}: {one.why}")
    if len(refused) > MOST_REFUSED:
        print_text(console, f"… and {len(refused) - MOST_REFUSED} more.")
    whose = f"peer {verifier.receiver[-8:]}" if verifier.receiver else "nobody"
    if not checked.receipts and not refused and not checked.counted:
        print_text(console, f"There are no receipts for {whose} of run {verifier.run[:12]} yet.")
        return
    if not checked.receipts and not refused:
        print_text(console, f"These are the states in the folder of {whose}, of run {verifier.run[:12]}.")
        return
    held = f"{len(refused)} do NOT hold, {len(checked.receipts)} do" if refused else ""
    print_text(
        console,
        f"Verified offline against run {verifier.run[:12]}, operator {verifier.authority.operator[-8:]}, for {whose}: "
        + (held or f"all {len(checked.receipts)} receipts hold."),
    )


ALONE = (
    "Only a neighbour in a group sees the tokens of another, and this peer computes all stages itself. The run's "
    "state, which is alike for all who follow the run, proves that these rounds count, and not how many tokens were in "
    "them: by the run's rules a whole round has {tokens:,}. An observer with --audit measures what each gained."
)
LOST_WORD = (
    "A neighbour that is killed or cut off before it signs takes its word with it. The run's state, which is alike for "
    "all who follow the run, proves that these rounds count."
)
"""The reasons for which nobody signed for a round that counts, and what proves it all the same."""


def _summary(checked: Checked) -> list[str]:
    """The lines below the rounds: what others signed, what counts, and why nobody signed for some of that."""
    from protocol.outer.window import Window

    rounds = [round_credit for round_credit in checked.rounds if round_credit.neighbours]
    both = sum(round_credit.tokens_of_both for round_credit in rounds)
    on_both_sides = f", {both:,} of them seen by neighbours on both sides" if both else ""
    total = sum(round_credit.tokens for round_credit in rounds)
    lines = [f"Signed by others: {total:,} tokens in {so_many(len(rounds), 'round')}{on_both_sides}."]
    window = Window.of(checked.manifest).width
    last = sum(round_credit.round + window > checked.manifest.outer.rounds for round_credit in checked.rounds)
    if checked.counted or not last:
        lines.append(f"Counted in the run's state: {so_many(len(checked.counted), 'round')}.")
    if last:
        lines.append(
            f"Of the run's last rounds: {so_many(last, 'round')}. What is signed shows them: no state is written later "
            "that could count them."
        )
    if checked.unsigned:
        inner = checked.manifest.inner
        why = ALONE.format(tokens=checked.manifest.tokens_per_step * inner.steps) if checked.is_alone else LOST_WORD
        lines.append(f"Counted, and signed by nobody: {so_many(checked.unsigned, 'round')}. {why}")
    return lines


def _names(peers: Iterable["PeerId"]) -> str:
    return ", ".join(peer[-8:] for peer in peers) or "–"
