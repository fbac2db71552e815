"""What a place in a run keeps on the disk, summed up and compared with what there is before anything is fetched."""

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from peer.joining import require_fit, require_place, text_sources
from peer.network.admission import Admitted
from peer.settings import PeerSettings
from peer.store.disk import SHARE, SIGNED_ON_DISK_BYTES, contribution_bytes, kept_bytes, require_space, space_in
from protocol.codec.contribution import max_bytes
from protocol.errors import ResourceError
from protocol.identity import EMBEDDING, Endpoint, stage_part
from protocol.layout import elements, part_layout
from protocol.manifest import Manifest
from protocol.net.bandwidth import Bandwidth
from protocol.run.run_files import RunFile, descriptor_of, file_names, files_needed
from protocol.trust.membership_card import Card
from protocol.trust.ticket import Ticket
from tests.reference.admitted import identity
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest()
OPERATOR = identity("operator")
FILE_BYTES = 5_000
DESCRIPTOR = descriptor_of(
    MANIFEST, OPERATOR.peer_id, [RunFile(name, "ab" * 32, FILE_BYTES) for name in file_names(MANIFEST)]
)
TICKET = Ticket(DESCRIPTOR.run_id, OPERATOR.public, ("127.0.0.1:1",), ())


def values(manifest: Manifest, *parts: str) -> int:
    return sum(elements(part_layout(manifest, part)) for part in parts)  # type: ignore[arg-type]


def test_a_stage_keeps_checkpoints_of_what_it_trains_and_states_of_what_it_follows() -> None:
    first, last = (kept_bytes(MANIFEST, stage, True, 1000) for stage in (0, 1))
    assert kept_bytes(MANIFEST, 0, True, 3000) == first + 2000
    trained, own = values(MANIFEST, EMBEDDING, stage_part(0)), max_bytes(MANIFEST, EMBEDDING)
    other = values(MANIFEST, stage_part(1))
    of_stages = max_bytes(MANIFEST, stage_part(0)) - max_bytes(MANIFEST, stage_part(1))
    followed = values(MANIFEST, stage_part(0)) - other
    assert first - last == 3 * (24 * (trained - other) + own + of_stages) + 6 * 4 * followed


def test_who_has_the_whole_model_keeps_all_of_it_and_an_observer_no_checkpoints() -> None:
    whole = kept_bytes(MANIFEST, None, True, 0)
    assert whole > kept_bytes(MANIFEST, 1, True, 0)
    watching = kept_bytes(MANIFEST, None, False, 0)
    every = values(MANIFEST, EMBEDDING, stage_part(0), stage_part(1))
    assert whole - watching >= 3 * 24 * every


def test_contributions_of_all_replicas_to_open_rounds_are_counted() -> None:
    few, many = (contribution_bytes(small_manifest(replicas={"groups": groups}), 1) for groups in (2, 10))
    rounds = MANIFEST.outer.grace + 2 * (MANIFEST.outer.liars + 1) + 3
    a_round = sum(max_bytes(MANIFEST, part) for part in (EMBEDDING, stage_part(1)))
    assert many - few == 8 * rounds * (a_round + 2 * SIGNED_ON_DISK_BYTES)


def test_without_a_limit_a_tenth_of_the_disk_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _free(monkeypatch, 10**10)
    (tmp_path / "blob").write_bytes(b"x" * 1000)
    space = space_in(tmp_path, DESCRIPTOR, files_needed(DESCRIPTOR, 0), 0, True, None)
    assert space.limit == 1000 + int(SHARE * 10**10)
    assert space.fixed > 4 * FILE_BYTES
    cache = space.cache(4 * 10**9)
    assert (cache, space.cache(10**12)) == (4 * 10**9, space.limit - space.needed)
    assert space.fixed + space.contribution_store(cache) + cache == space.limit


def _free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**13, 10**13 - free, free))


def test_what_does_not_fit_is_refused_with_both_numbers_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = space_in(tmp_path, DESCRIPTOR, files_needed(DESCRIPTOR, 1), 1, True, 10**6)
    with pytest.raises(
        ResourceError, match=r"--max-disk 1\.0 MB is not enough for stage 1, which keeps up to \d+.* MB"
    ):
        require_space(limited, tmp_path, "stage 1", limited=True)
    _free(monkeypatch, 10**7)
    space = space_in(tmp_path, DESCRIPTOR, files_needed(DESCRIPTOR, 1), 1, True, None)
    with pytest.raises(ResourceError, match=r"not enough disk for stage 1.* 10\.0 MB are free.* --dir"):
        require_space(space, tmp_path, "stage 1", limited=False)
    roomy = space_in(tmp_path, DESCRIPTOR, files_needed(DESCRIPTOR, 1), 1, True, 10**12)
    with pytest.raises(ResourceError, match="not enough disk"):  # a limit makes no room
        require_space(roomy, tmp_path, "stage 1", limited=True)


def settings_with(folder: Path, max_disk: int, stage: int | None = None) -> PeerSettings:
    return PeerSettings(ticket=TICKET, role="volunteer", directory=folder, stage=stage, device="cpu", max_disk=max_disk)


def test_a_peer_that_names_its_stage_asks_for_no_place_that_its_disk_has_not(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"--max-disk 1\.0 MB"):
        require_fit(settings_with(tmp_path, 10**6, stage=0), DESCRIPTOR)
    device = require_fit(settings_with(tmp_path, 10**6), DESCRIPTOR)
    with pytest.raises(ResourceError, match=r"--max-disk 1\.0 MB is not enough for stage 1"):
        require_place(settings_with(tmp_path, 10**6), DESCRIPTOR, 1, device)
    require_place(settings_with(tmp_path, 10**9), DESCRIPTOR, 1, device)


@pytest.mark.parametrize("left", [0, 1000, 10**10])
def test_the_cache_of_blocks_gets_what_is_left(tmp_path: Path, left: int) -> None:
    prepared = descriptor_of(
        MANIFEST, OPERATOR.peer_id, [RunFile(name, "ab" * 32, 5) for name in file_names(MANIFEST, prepared=True)]
    )
    unlimited = space_in(tmp_path, prepared, files_needed(prepared, 0), 0, True, 10**12)
    settings = settings_with(tmp_path, unlimited.needed + left, stage=0)
    space = require_place(settings, prepared, 0, require_fit(settings, prepared))
    credentials: Any = None
    place = Admitted(
        Card(OPERATOR.peer_id, "volunteer", 0, 0), b"", credentials, Endpoint(OPERATOR.peer_id, ""), False, False
    )
    text = text_sources(settings, prepared, place, Bandwidth(), space)
    assert text is not None
    assert text.cache_bytes == min(4 * 10**9, left)
