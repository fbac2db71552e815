"""The pages of the documentation, and what is written in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]

PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("README.md"),
    ]
)

BLOCK = re.compile(r"(?:<!-- not run: (?P<why>[^>]+?) -->\s*\n)?```(?P<kind>\w*)\n(?P<text>.*?)```", re.DOTALL)
"""A fenced block, and the comment right above it that says why no test runs what is in it."""

ELSEWHERE = re.compile(r"\d*>>?.*|<.*|[|]|&&?")
"""Where a command's own words end: a shell sends its output elsewhere."""

SET = re.compile(r"[A-Z_]+=\S*")
"""A variable in front of a command."""


EXPERIMENTS = ("python", "-m", "examples.experiments")


@dataclass(frozen=True, slots=True)
class Typed:
    """A command of a page's shell block: where it is, its words, and why no test runs it (empty: one does)."""

    page: str
    words: tuple[str, ...]
    not_run: str

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def name_of(page: Path) -> str:
    """As it is called from the root of the repository."""
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def typed(page: Path) -> Iterator[Typed]:
    """Every `hetpeer …`, `make …` and `python -m examples.experiments …` of a page's shell blocks, without comments and
    variables in front."""
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["kind"] != "sh":
            continue
        for line in block["text"].replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and SET.fullmatch(words[0]):
                words = words[1:]
            own = tuple(takewhile(lambda word: not ELSEWHERE.fullmatch(word), words))
            if own and (own[0] in ("hetpeer", "make") or own[:3] == EXPERIMENTS):
                yield Typed(name_of(page), own, block["why"] or "")


def anchors(page: Path) -> set[str]:
    """What `#…` may name in a page, as GitHub makes it of a heading."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
        if found[anchor]:
            found[f"{anchor}-{found[anchor]}"] = 0
    return set(found)
