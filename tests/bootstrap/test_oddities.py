"""What is odd about a run: its operator is told when it is made."""

from pathlib import Path

from bootstrap.genesis import create_run
from bootstrap.oddities import oddities, text_oddities, train_tokens
from protocol.manifest import load_manifest
from tests.reference.prepared import small_prepared
from tests.reference.small_manifest import small_manifest

ROOT = Path(__file__).parents[2]


def test_a_warmup_that_is_longer_than_the_run_is_told_with_what_is_usual():
    steps = 3 * 7
    assert not oddities(small_manifest(inner={"steps": 7, "warmup": steps}, outer={"rounds": 3}))
    (said,) = oddities(small_manifest(inner={"steps": 7, "warmup": steps + 1}, outer={"rounds": 3}))
    assert "inner.warmup = 22 is longer than the run, which has 21 inner steps" in said


def test_a_text_that_is_read_more_than_four_times_is_told():
    manifest = small_manifest(outer={"rounds": 3})
    planned = manifest.tokens_per_step * manifest.inner.steps * 3 * manifest.replicas.total
    assert not text_oddities(manifest, planned // 4)
    (said,) = text_oddities(manifest, planned // 10)
    assert "each is read 10 times" in said


def test_the_tokens_of_a_runs_text_are_counted_whether_it_is_prepared_or_not(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("Some words of a text. " * 2000)
    manifest = small_manifest()
    plain = create_run(manifest, tmp_path / "plain", text)
    assert train_tokens(tmp_path / "plain", plain) == (tmp_path / "plain" / "train.bin").stat().st_size // 2
    folder = small_prepared(tmp_path)
    prepared = create_run(manifest, tmp_path / "prepared", folder)
    shards = sum((path.stat().st_size for path in folder.glob("train-*.bin")), 0)
    assert 0 < train_tokens(tmp_path / "prepared", prepared) * 2 <= shards


def test_the_examples_have_no_odd_manifest():
    for path in sorted((ROOT / "examples").rglob("*.toml")):
        if "[model]" in path.read_text():
            assert not oddities(load_manifest(path)), path
