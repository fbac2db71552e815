"""Which runs of a sweep read the same files."""

from peer.lab.sweep_worker import run_files
from tests.reference.small_manifest import small_manifest


def test_runs_that_are_cut_alike_share_their_files_and_no_others():
    even, by_hand = small_manifest(), small_manifest(replicas={"layers": [1, 2]})
    quicker = small_manifest(replicas={"layers": [1, 2], "compression": 2}, inner={"steps": 9})
    assert run_files(even).cut == even.cut
    assert run_files(by_hand).cut == by_hand.cut
    assert run_files(by_hand).digest == run_files(quicker).digest != run_files(even).digest
