"""Which runs of a sweep read the same files."""

from examples.experiments.sweep_worker import run_files
from protocol.layout import model_layout
from tests.reference.small_manifest import small_manifest


def test_runs_that_are_cut_alike_share_their_files_and_no_others():
    even, by_hand = small_manifest(), small_manifest(replicas={"layers": [1, 2]})
    quicker = small_manifest(replicas={"layers": [1, 2], "compression": 2}, inner={"steps": 9})
    assert run_files(even).cut == even.cut
    assert run_files(by_hand).cut == by_hand.cut
    assert run_files(by_hand).digest == run_files(quicker).digest != run_files(even).digest


def test_files_have_the_tables_that_a_run_looks_up_and_no_others():
    plain = small_manifest(replicas={"stages": 3})
    tables = [
        small_manifest(replicas={"stages": 3, "ngrams": n, "ngram_width": r}) for n, r in ((1, 5), (2, 5), (2, 6))
    ]
    for run in (plain, *tables):
        assert model_layout(run_files(run)) == model_layout(run)
    assert len({run_files(run).digest for run in (plain, *tables)}) == 4
