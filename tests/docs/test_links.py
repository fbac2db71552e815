"""Links within the documentation lead somewhere."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, name_of, prose

LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_and_anchor_resolves(page: Path):
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(link)
    assert not broken


def test_every_page_is_reached_from_the_readme():
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        links = (link.partition("#")[0] for link in LINK.findall(prose(page)))
        waiting += [(page.parent / path).resolve() for path in links if path and ":" not in path]
    assert not set(PAGES) - reached - {ROOT / "CHANGELOG.md"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_has_what_a_merge_left_behind(page: Path):
    assert not re.search(r"^(<{7}|={7}|>{7})", page.read_text(), re.MULTILINE)
