"""Bytes, seconds, rates and counts as people read them, lines that break between words, and strangers' text made safe
to show. Pure."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal


def size(count: float) -> str:
    """Bytes in words: "999 B", "1.5 kB", "2.5 MB", "3.0 GB"."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def rate(bits: float) -> str:
    """Bits a second in words: "0.5 Mb/s", "20 Mb/s", "1.5 Gb/s"."""
    return f"{bits / 1e9:.1f} Gb/s" if bits >= 1e9 else f"{bits / 1e6:.{0 if bits >= 1e7 else 1}f} Mb/s"


def lasting(seconds: float, exact: bool = False) -> str:
    """A time in words: "3.5 ms", "350 ms", "1.2 s", "12 s", "2.5 min", "2.5 h", "2.5 days"; `exact`: "350.1 ms",
    "1.23 s", "12.34 s"."""
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:.1f} days"
    if seconds >= 2 * 3600:
        return f"{seconds / 3600:.1f} h"
    if seconds >= 120:
        return f"{seconds / 60:.1f} min"
    if seconds >= 1:
        return f"{seconds:.{2 if exact else 1 if seconds < 10 else 0}f} s"
    return f"{1e3 * seconds:.{1 if exact or seconds < 0.01 else 0}f} ms"


def millions(count: float, decimals: int = 1) -> str:
    """A count in the few columns of a table: "0.3 M", "1,234.5 M"; where so many decimals would lose it, "40,960"."""
    shown = f"{count / 1e6:,.{decimals}f}"
    return f"{shown} M" if count >= 10 ** (6 - decimals) else f"{count:,.0f}"


def abbreviated(count: float) -> str:
    """A count in three or so digits where it is large: "40,960", "3.3 million", "3.83 billion"."""
    if count < 1e6:
        return f"{count:,.0f}"
    return f"{count / 1e6:,.1f} million" if count < 1e9 else f"{count / 1e9:,.2f} billion"


def digits(number: float) -> str:
    """The first three digits of a number, as a person types it: "2470", "0.0309"."""
    return f"{Decimal(f'{number:.3g}'):f}"


def so_many(count: int, what: str) -> str:
    """A number of things: "1 peer", "2 peers"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def megabytes_above(count: int) -> str:
    """Word a number of bytes as a limit that is not below it: "617MB"."""
    return f"{-(-count // 10**6)}MB"


def numbers_named(numbers: Sequence[int]) -> str:
    """Numbers that go up, in words: "1", "1 and 2", "0, 2 and 5"; three or more in a row: "1 to 30"."""
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return " and ".join(filter(None, (", ".join(map(str, numbers[:-1])), str(numbers[-1]))))


def minutes_and_seconds(seconds: float) -> str:
    """Minutes and seconds: "0:42", "90:00"."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def since(seconds: float) -> str:
    """Hours, minutes and seconds: "1:01", "25:01:01"."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def moment(at: float) -> str:
    """A Unix time as the local date and time: "2026-11-24 04:30:49"."""
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"


def tail(peer: str) -> str:
    """The end of a peer id, as people see it: its last 8 characters."""
    return peer[-8:]


def tails(peers: Iterable[str]) -> str:
    """The ends of several peer ids, with commas."""
    return ", ".join(map(tail, peers))


def printable(text: str) -> str:
    """Text that a stranger chose, with a mark in the place of each character that could move a terminal's cursor,
    change its colours or reverse the direction of writing."""
    return "".join(character if character.isprintable() else "�" for character in text)


INSEPARABLE = "\xa0"
"""The space at which no line breaks: `textwrap` knows no other way to keep words together."""


def wrapped(text: str, width: int) -> str:
    """Break the lines of a text that are longer than `width` between words, further ones with their indent. A command
    in backticks that fits a line, and a word longer than that (a ticket, a path), stay whole, to be copied."""
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) <= width:
            lines.append(line)
            continue
        together = re.sub(
            r"`[^`]*`", lambda span: span[0].replace(" ", INSEPARABLE) if len(span[0]) <= width else span[0], line
        )
        indent = line[: len(line) - len(line.lstrip(" "))]
        pieces = textwrap.wrap(
            together, max(1, width), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        lines += [piece.replace(INSEPARABLE, " ") for piece in pieces]
    return "\n".join(lines)


LOST = (
    "nobody who is here holds it; a peer that has it in its folder can bring it back, or the run's operator can go on "
    "without it: `hetpeer admin rewind`"
)
"""The words for a state that is needed, and that nobody here holds."""


def parts_named(parts: Iterable[str]) -> str:
    """Parts of the model in words: "stage 1", "the token embedding and stage 0"."""
    names = ["the token embedding" if part == "embedding" else part.replace("-", " ") for part in sorted(parts)]
    return " and ".join(names)


def state_after(round: int, what: str) -> str:
    """The state of parts of the model, as `parts_named` names them, after a round."""
    return f"the state of {what} after round {round}"
