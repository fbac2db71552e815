"""What was put in the store of contributions is there after a crash, once, and goes when it is of no use any more.
Snapshots come from several peers at once, piece by piece, whatever some of them do."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from peer.network import snapshot_transfer, wanted
from peer.network.snapshot_transfer import Fetching, SnapshotService, fetch_snapshot
from peer.store import served
from peer.store.served import ASKED_KEPT, BLOCK_BYTES, SNAPSHOTS_KEPT, ContributionStore, SnapshotStore
from protocol.codec.snapshot import Header, parse_header
from protocol.errors import FormatError, HetpeerError, PeerError, ResourceError, UnreachableError
from protocol.identity import EMBEDDING, ContributionName, PeerId, stage_part
from protocol.layout import part_layout
from protocol.net.blobs import BlobService
from protocol.net.channels import listen, options
from protocol.outer.data_plan import Reading
from protocol.outer.history import History
from protocol.outer.ledger import Entry
from protocol.schemas import blobs_pb2_grpc, snapshots_pb2_grpc
from protocol.schemas.blobs_pb2 import Chunk, FetchRequest
from protocol.trust.records import PeerRecord
from tests.reference.admitted import contacts, credentials, identity
from tests.reference.small_manifest import small_manifest

MANIFEST = small_manifest(model={"vocabulary": 2**15, "d": 32})
"""The embedding has four pieces."""


# Contributions


def entry(round: int, blob: bytes) -> Entry:
    receipts = {PeerId("QmB"): b"its receipt"}
    return Entry(
        ContributionName(EMBEDDING, round, PeerId("QmA")),
        hashlib.sha256(blob).hexdigest(),
        len(blob),
        b"proof of " + blob,
        receipts,
    )


def test_what_was_put_is_found_again_with_proof_receipts_and_bytes(tmp_path: Path):
    first = ContributionStore(tmp_path)
    first.put(entry(1, b"one"), b"one")
    first.put(entry(2, b"void"))
    again = ContributionStore(tmp_path)
    found = list(again.found())
    assert found == [(b"proof of one", [b"its receipt"], True), (b"proof of void", [b"its receipt"], False)]
    assert again.read(entry(1, b"one").sha256) == b"one"
    assert again.lookup(entry(2, b"void").sha256) is None


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_looked_up_is_still_there_when_the_file_is_replaced_by_one_with_more_receipts(
    tmp_path: Path, restarted: bool
):
    store = ContributionStore(tmp_path)
    store.put(entry(1, b"one"), b"one")
    if restarted:
        store = ContributionStore(tmp_path)
        assert len(list(store.found())) == 1
    where = store.lookup(entry(1, b"one").sha256)
    assert where is not None
    more = replace(entry(1, b"one"), receipts={PeerId(f"Qm{name}"): b"another" for name in "BCD"})
    ContributionStore(tmp_path).put(more, b"one")  # as another thread, of which this store does not know yet
    assert store.read(more.sha256) == b"one"
    assert where.path.read_bytes()[where.offset :][: where.size] == b"one"


def test_what_is_damaged_is_passed_over_and_what_is_half_written_goes(tmp_path: Path):
    contribution_store = ContributionStore(tmp_path)
    for round, blob in enumerate((b"turned", b"cut short", b"no head", b"whole"), 1):
        contribution_store.put(entry(round, blob), blob)
    turned, cut, headless = (
        contribution_store.slices[entry(0, blob).sha256].path for blob in (b"turned", b"cut short", b"no head")
    )
    turned.write_bytes(turned.read_bytes()[:-1] + b"D")
    cut.write_bytes(cut.read_bytes()[:-2])
    headless.write_bytes(b"\xc1")
    half = turned.with_name(f".{turned.name}.partial")
    half.write_bytes(b"half")
    assert [proof for proof, _, _ in ContributionStore(tmp_path).found()] == [b"proof of whole"]
    assert half.exists()  # its peer may be at work
    ContributionStore(tmp_path).tidy()
    assert not half.exists()


def test_contributions_written_in_threads_at_once_take_no_more_of_the_disk_than_its_owner_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The second comes while the first is being written; when the first has failed, its place is free again."""
    contribution_store = ContributionStore(tmp_path, BLOCK_BYTES)

    def fails(path: Path, data: bytes) -> None:
        with pytest.raises(ResourceError, match="--max-disk"):
            contribution_store.put(entry(2, b"two"), b"two")
        raise ResourceError("cannot write it")

    with monkeypatch.context() as patched:
        patched.setattr(served, "write_atomically", fails)
        with pytest.raises(ResourceError, match="cannot write it"):
            contribution_store.put(entry(1, b"one"), b"one")
    contribution_store.put(entry(2, b"two"), b"two")
    with pytest.raises(ResourceError, match="--max-disk"):
        contribution_store.put(entry(1, b"one"), b"one")
    contribution_store.put(entry(2, b"two"), b"two")  # as with more receipts: it takes its own place


def test_closed_rounds_go_but_for_what_is_to_be_kept(tmp_path: Path):
    contribution_store = ContributionStore(tmp_path)
    for round in range(1, 6):
        contribution_store.put(entry(round, bytes([round])), bytes([round]))
    kept = entry(2, b"\x02").sha256
    contribution_store.drop(EMBEDDING, 3, keep=[kept])
    contribution_store.put(entry(1, b"too late"), b"too late")
    contribution_store.drop(EMBEDDING, 4, keep=[kept])
    assert {proof for proof, _, _ in ContributionStore(tmp_path).found()} == {b"proof of \x02", b"proof of \x05"}
    assert contribution_store.slices.keys() == {kept, entry(5, b"\x05").sha256}


def test_a_contribution_costs_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    contribution_store, synced = ContributionStore(tmp_path), []
    contribution_store.put(entry(1, b"one"), b"one")
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), real(file)))
    contribution_store.put(entry(2, b"two"), b"two")
    assert len(synced) == 2  # the file, and its name


def test_what_there_is_no_room_for_is_not_written(tmp_path: Path):
    """And what is dropped makes room: files are counted as the disk counts them."""
    contribution_store, half = ContributionStore(tmp_path, most_bytes=3 * BLOCK_BYTES), b"x" * (BLOCK_BYTES // 2)
    contribution_store.put(entry(1, b"one"), b"one")
    contribution_store.put(entry(2, half), half)
    for _ in range(2):  # also after a restart
        with pytest.raises(ResourceError, match="--max-disk"):
            contribution_store.put(entry(3, b"three"), b"three")
        contribution_store = ContributionStore(tmp_path, most_bytes=3 * BLOCK_BYTES)
        contribution_store.tidy()
    contribution_store.put(entry(1, b"one"), b"one")  # the same again takes no more
    contribution_store.drop(EMBEDDING, 1)
    contribution_store.put(entry(3, b"three"), b"three")
    assert sum(path.stat().st_blocks * 512 for path in tmp_path.glob("*/*")) <= 3 * BLOCK_BYTES


# Snapshots


def state(seed: int = 0) -> dict[str, np.ndarray]:
    chance = np.random.default_rng(seed)
    layout = part_layout(MANIFEST, EMBEDDING)
    return {name: chance.integers(-(2**31), 2**31, shape).astype(np.int32) for name, shape in layout.items()}


def history(rounds: int) -> History:
    made = History()
    for round in range(1, rounds + 1):
        made.add(round, [PeerId("QmA"), PeerId("QmB")])
    return made


def reading(rounds: int) -> Reading:
    made = Reading.begin(MANIFEST)
    for _ in range(rounds):
        made = made.fold({0: 3, 1: 1}, MANIFEST)
    return made


@asynccontextmanager
async def holders(folder: Path, count: int) -> AsyncIterator[tuple[list[PeerRecord], list[SnapshotStore], Header]]:
    """Peers that hold one and the same state after round 5."""
    async with AsyncExitStack() as stack:
        records, stores = [], []
        for number in range(count):
            store = SnapshotStore(folder / str(number), MANIFEST)
            header = store.write(EMBEDDING, 5, history(5), state().values(), reading(5))
            server = grpc.aio.server(options=options(MANIFEST))
            snapshots_pb2_grpc.add_SnapshotsServicer_to_server(SnapshotService(store), server)
            blobs_pb2_grpc.add_BlobsServicer_to_server(BlobService(MANIFEST, store.lookup), server)
            address = f"127.0.0.1:{listen(server, '127.0.0.1:0', credentials(f'holder {number}').serving())}"
            await server.start()
            stack.push_async_callback(server.stop, None)
            stores.append(store)
            records.append(
                PeerRecord(
                    peer_id=identity(f"holder {number}").peer_id, address=address, role="datacenter", stage=0, slot=0
                )
            )
        yield records, stores, header


async def take(
    records: list[PeerRecord], digest: str, folder: Path
) -> tuple[Fetching, dict[str, HetpeerError], SnapshotStore]:
    calling, store, failed = contacts("me", MANIFEST), SnapshotStore(folder / "mine", MANIFEST), {}
    try:
        fetched = await fetch_snapshot(
            records,
            digest,
            calling,
            store,
            lambda done, total: None,
            lambda peer, error: failed.update({peer.peer_id: error}),
        )
    finally:
        await calling.close()
    return fetched, failed, store


def same(store: SnapshotStore, header: Header) -> bool:
    return all((store.read(header)[name] == tensor).all() for name, tensor in state().items())


def test_it_comes_from_several_peers_and_is_the_same(tmp_path: Path):
    async def scene() -> None:
        async with holders(tmp_path, 3) as (records, _, header):
            fetched, failed, store = await take(records, header.digest, tmp_path)
            assert same(store, fetched.header)
            assert len(fetched.served) >= 2
            assert sum(fetched.served.values()) == fetched.total == fetched.done == 4 * 2**20
            assert failed == {}

    asyncio.run(scene())


@pytest.mark.parametrize("fault", ["wrong bytes", "no file", "gone"])
def test_a_peer_that_fails_is_passed_over_and_its_pieces_come_from_others(tmp_path: Path, fault: str):
    async def scene() -> None:
        async with holders(tmp_path, 3) as (records, stores, header):
            path = stores[0].path(EMBEDDING, 5)
            if fault == "wrong bytes":
                path.write_bytes(bytes(path.stat().st_size))
            elif fault == "no file":
                stores[0].pieces.clear()
            else:
                records[0] = records[0].model_copy(update={"address": "127.0.0.1:1"})
            fetched, failed, store = await take(records, header.digest, tmp_path)
            assert same(store, fetched.header)
            assert failed.keys() == {identity("holder 0").peer_id}
            assert isinstance(failed[identity("holder 0").peer_id], PeerError) == (
                fault == "wrong bytes"
            )  # to be absent is no lie

    asyncio.run(scene())


def test_when_nobody_has_a_piece_the_error_says_what_is_missing(tmp_path: Path):
    async def scene() -> None:
        async with holders(tmp_path, 2) as (records, stores, header):
            for store in stores:
                del store.pieces[header.pieces[2]]
            with pytest.raises(UnreachableError, match="1 of 4 pieces of the state of embedding after round 5"):
                await take(records, header.digest, tmp_path)

    asyncio.run(scene())


def test_an_interrupted_fetch_goes_on_and_mends_what_is_damaged(tmp_path: Path):
    async def scene() -> None:
        async with holders(tmp_path, 2) as (records, stores, header):
            partial = SnapshotStore(tmp_path / "mine", MANIFEST).path(EMBEDDING, 5).with_suffix(".part")
            partial.parent.mkdir()
            whole = stores[0].path(EMBEDDING, 5).read_bytes()
            partial.write_bytes(whole[: 2**20] + bytes(2**20) + whole[2**21 : 3 * 2**20])
            fetched, _, store = await take(records, header.digest, tmp_path)
            assert same(store, fetched.header)
            assert sum(fetched.served.values()) == 2 * 2**20

    asyncio.run(scene())


def test_another_header_than_was_announced_is_refused(tmp_path: Path):
    async def scene() -> None:
        async with holders(tmp_path, 1) as (records, stores, header):
            stores[0].headers["00" * 32] = stores[0].headers[header.digest]
            with pytest.raises(UnreachableError, match="none of 1 peers"):
                await take(records, "00" * 32, tmp_path)

    asyncio.run(scene())


def test_the_last_states_are_kept_and_the_newest_whole_one_is_found_again(tmp_path: Path):
    store = SnapshotStore(tmp_path, MANIFEST)
    for round in range(1, 6):
        store.write(EMBEDDING, round, history(round), state(round).values(), reading(round))
    assert len(list(tmp_path.glob("*.grid"))) == SNAPSHOTS_KEPT
    store.path(EMBEDDING, 5).write_bytes(b"torn")
    found = SnapshotStore(tmp_path, MANIFEST).resume(EMBEDDING)
    assert found is not None
    assert found[0].round == 4
    assert (next(iter(found[1].values())) == next(iter(state(4).values()))).all()


def test_a_peer_that_starts_again_serves_its_last_state_and_nothing_else_is_left(tmp_path: Path, monkeypatch):
    other = small_manifest(model={"vocabulary": 2**15, "d": 32}, replicas={"stages": 3})
    before = SnapshotStore(tmp_path, other)
    for part in (EMBEDDING, stage_part(1)):
        layout = part_layout(other, part)
        for round in range(3, 6):
            tensors = [np.full(shape, round, np.int32) for shape in layout.values()]
            read = reading(round) if part == EMBEDDING else None
            header = before.write(part, round, history(round), tensors, read)
    last = before.write(EMBEDDING, 6, history(6), state(6).values(), reading(6))
    for name in (".part", ".grid"):  # given up, and forgotten by a crash
        before.path(EMBEDDING, 2).with_suffix(name).write_bytes(b"orphan")
    coming = before.path(EMBEDDING, 7).with_suffix(".part")
    coming.write_bytes(b"on its way")
    again, written = SnapshotStore(tmp_path, other), []
    monkeypatch.setattr(served, "write_atomically", lambda path, data: written.append(path))
    found = again.resume(EMBEDDING)
    assert found is not None
    assert found[0] == last
    assert written == []
    assert again.headers.keys() == {last.digest}
    assert again.lookup(last.pieces[0]) is not None
    assert set(tmp_path.glob("embedding-*")) == {
        coming,
        before.path(EMBEDDING, 6),
        before.path(EMBEDDING, 6).with_suffix(".header"),
    }
    assert header.part == stage_part(1)
    assert len(list(tmp_path.glob("stage-1-*.grid"))) == SNAPSHOTS_KEPT  # another part is left alone


def test_a_state_that_is_taken_over_drives_out_the_later_ones_of_the_state_given_up(tmp_path: Path):
    store = SnapshotStore(tmp_path, MANIFEST)
    for round in range(3, 7):
        store.write(EMBEDDING, round, history(round), state(round).values(), reading(round))
    taken = store.write(EMBEDDING, 5, history(4), state(5).values(), reading(5))  # most pieces are as in ours
    assert {header.round for header, _ in store.headers.values()} == {4, 5}
    assert all(store.lookup(sha256) is not None for sha256 in taken.pieces)
    found = SnapshotStore(tmp_path, MANIFEST).resume(EMBEDDING)
    assert found is not None
    assert found[0] == taken


def test_a_download_that_is_begun_ends_those_that_were_given_up(tmp_path: Path):
    async def scene() -> None:
        async with holders(tmp_path, 2) as (records, _, header):
            mine = SnapshotStore(tmp_path / "mine", MANIFEST)
            mine.directory.mkdir()
            given_up = mine.path(EMBEDDING, 3).with_suffix(".part")
            given_up.write_bytes(b"some pieces")
            await take(records, header.digest, tmp_path)
            assert {path.suffix for path in mine.directory.iterdir()} == {".grid", ".header"}

    asyncio.run(scene())


def test_a_state_stays_as_long_as_somebody_goes_on_fetching_it_and_not_many_do(tmp_path: Path):
    store, begun = SnapshotStore(tmp_path, MANIFEST), {}
    for round in range(1, 12):
        header = store.write(EMBEDDING, round, history(round), state(round).values(), reading(round))
        begun[round] = header.pieces[round % 4]
        for asked in (1, 2, 3) if round < 7 else (1,):
            store.lookup(begun.get(asked, ""))
        kept = sorted(each.round for each, _ in store.headers.values())
        last = list(range(max(1, round - SNAPSHOTS_KEPT + 1), round + 1))
        if round >= 6:
            gone = round > 6 + SNAPSHOTS_KEPT  # nobody has asked for it for so long
            assert kept == [1, *([] if gone else [2]), *last]
        assert len(list(tmp_path.glob("*.grid"))) == len(kept) <= SNAPSHOTS_KEPT + ASKED_KEPT
    assert store.lookup(begun[1]) is not None
    assert store.lookup(begun[3]) is None


def test_a_header_says_what_its_bytes_say_and_nothing_else_parses(tmp_path: Path):
    header = SnapshotStore(tmp_path, MANIFEST).write(EMBEDDING, 5, history(5), state().values(), reading(5))
    data = header.to_bytes()
    assert parse_header(data, MANIFEST) == header
    assert header.digest == hashlib.sha256(data).hexdigest()
    other = small_manifest()
    with pytest.raises(FormatError, match="another number of pieces"):
        parse_header(data, other)
    for cut in range(0, len(data), 7):
        with pytest.raises(FormatError):
            parse_header(data[:cut], MANIFEST)
    for bad in (b"", b"\xc1", data + b"\0", data.replace(b"QmA", b"QmC", 1)):
        with pytest.raises(FormatError):
            parse_header(bad, MANIFEST)


def test_a_header_that_does_not_end_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scene() -> None:
        async with holders(tmp_path, 1) as (records, _, header):
            monkeypatch.setattr(snapshot_transfer, "HEADER_BYTES", len(header.to_bytes()) - 1)
            with pytest.raises(UnreachableError, match="gave the header"):
                await fetch_snapshot(
                    records,
                    header.digest,
                    calling := contacts("me", MANIFEST),
                    SnapshotStore(tmp_path / "mine", MANIFEST),
                    lambda done, total: None,
                    lambda peer, error: failed.append(error),
                )
            await calling.close()
            assert [str(error) for error in failed if isinstance(error, PeerError) and "longer than" in str(error)]

    failed: list[HetpeerError] = []
    asyncio.run(scene())


@pytest.mark.parametrize("slow", [1, 6])
def test_beside_a_donor_that_is_slow_another_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int):
    for module in (snapshot_transfer, wanted):
        monkeypatch.setattr(module, "LAG_SECONDS", 0.1)
    serve, slow_ones = BlobService.Fetch, list[SnapshotStore]()

    async def dripping(self: BlobService, request: FetchRequest, context: Any) -> AsyncIterator[Chunk]:
        if any(self.lookup == each.lookup for each in slow_ones):
            yield Chunk(data=b"x")
            await asyncio.Event().wait()
        async for chunk in serve(self, request, context):
            yield chunk

    monkeypatch.setattr(BlobService, "Fetch", dripping)

    async def scene() -> None:
        async with holders(tmp_path, slow + 1) as (records, stores, header):
            slow_ones.extend(stores[:slow])
            fetched, failed, store = await asyncio.wait_for(take(records, header.digest, tmp_path), 20)
            assert same(store, fetched.header)
            assert fetched.served == {records[-1].peer_id: fetched.total}
            assert failed == {}  # it is not at fault, only slow

    asyncio.run(scene())
