"""What a folder must hold before a peer goes on without the operator's node."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.genesis import create_run
from peer.network.discovery import Discovery, keep_remembering
from peer.store.membership import (
    MEMBERSHIP,
    OLD_FILES,
    claim_folder,
    kept_credentials,
    mirrors_of,
    node_of,
    read_membership,
    recall,
    write_membership,
)
from protocol.errors import ResourceError
from protocol.identity import Endpoint, PeerId, RunId
from protocol.run.run_files import DESCRIPTOR, Descriptor, genesis_file
from protocol.trust.certificates import authority
from protocol.trust.keys import Identity, load_or_create
from protocol.trust.membership_card import Authority, Card, Signer, issue
from protocol.trust.records import PeerRecord
from protocol.trust.ticket import PEERS, Ticket, remember_addresses
from tests.reference.admitted import certified, identity
from tests.reference.loopback_peers import NoDht
from tests.reference.processes import TEXT
from tests.reference.small_manifest import small_manifest

MEETING = "/ip4/127.0.0.1/tcp/4001/p2p/QmPeer"

MIRRORS = ("http://a.example/x", "https://b.example")

NODE = Endpoint(PeerId("QmNode"), "127.0.0.1:7702")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Descriptor, Identity, Path]:
    """A run of one stage-1 volunteer's reach: the operator's folder."""
    folder = tmp_path_factory.mktemp("operator")
    (folder / "text.txt").write_text(TEXT)
    descriptor = create_run(small_manifest(), folder, folder / "text.txt", lambda doing: None)
    return descriptor, load_or_create(folder), folder


@pytest.fixture
def folder(made: tuple[Descriptor, Identity, Path], tmp_path: Path) -> Path:
    """The folder of a volunteer of stage 1 that has been in the run."""
    descriptor, operator, source = made
    for file in descriptor.files:
        (tmp_path / file.name).write_bytes((source / file.name).read_bytes())
    (tmp_path / DESCRIPTOR).write_bytes(descriptor.canonical())
    me = load_or_create(tmp_path).peer_id
    card = issue(operator, descriptor.run_id, Card(me, "volunteer", 1, 3))
    write_membership(tmp_path, card, certified(load_or_create(tmp_path), operator), MIRRORS, NODE)
    remember_addresses(tmp_path, [MEETING])
    return tmp_path


def ticket(descriptor: Descriptor, made_by: Identity, run: RunId | None = None) -> Ticket:
    return Ticket(run or descriptor.run_id, made_by.public, ("127.0.0.1:9",), ("/ip4/127.0.0.1/tcp/9/p2p/QmFirst",))


def test_a_whole_folder_is_all_that_is_needed(made: tuple[Descriptor, Identity, Path], folder: Path):
    me = load_or_create(folder)
    for stage in (1, None):
        found = recall(folder, ticket(*made[:2]), me, "volunteer", stage)
        assert found is not None
        assert (found.descriptor, found.card) == (made[0], Card(me.peer_id, "volunteer", 1, 3))
        assert found.credentials.root == authority(made[1])
        assert found.addresses == ("/ip4/127.0.0.1/tcp/9/p2p/QmFirst", MEETING)


def test_without_others_the_tickets_addresses_are_left(made: tuple[Descriptor, Identity, Path], folder: Path):
    (folder / PEERS).unlink()
    found = recall(folder, ticket(*made[:2]), load_or_create(folder), "volunteer", 1)
    assert found is not None
    assert found.addresses == ticket(*made[:2]).addresses


def changed(folder: Path, **fields: object) -> None:
    """Write some fields of the membership anew."""
    membership = read_membership(folder).model_copy(update=fields)
    (folder / MEMBERSHIP).write_text(membership.model_dump_json())


def another_card(folder: Path, operator: Identity, run: RunId, **changes: object) -> None:
    fields = {"peer": load_or_create(folder).peer_id, "role": "volunteer", "stage": 1, "slot": 0} | changes
    changed(folder, card=issue(operator, run, Card(**fields)))  # type: ignore[arg-type]


def another_certificate(folder: Path, peer: Identity, operator: Identity) -> None:
    shown = certified(peer, operator)
    changed(folder, certificate=shown.chain.decode(), authority=shown.root.decode())


Break = Callable[[Path, Descriptor, Identity], object]
BROKEN: dict[str, Break] = {
    "no descriptor": lambda folder, run, operator: (folder / DESCRIPTOR).unlink(),
    "another descriptor": lambda folder, run, operator: (folder / DESCRIPTOR).write_bytes(run.canonical() + b" "),
    "no membership": lambda folder, run, operator: (folder / MEMBERSHIP).unlink(),
    "a damaged membership": lambda folder, run, operator: damage(folder / MEMBERSHIP),
    "a membership of a later version": lambda folder, run, operator: changed(folder, version=2),
    "no card": lambda folder, run, operator: changed(folder, card=b""),
    "a damaged card": lambda folder, run, operator: changed(folder, card=b"x" * 200),
    "another's card": lambda folder, run, operator: another_card(folder, operator, run.run_id, peer=PeerId("x")),
    "a card of another role": lambda folder, run, operator: another_card(folder, operator, run.run_id, role="observer"),
    "a card of another stage": lambda folder, run, operator: another_card(folder, operator, run.run_id, stage=0),
    "a card of another run": lambda folder, run, operator: another_card(folder, operator, RunId("ab" * 32)),
    "a card by nobody": lambda folder, run, operator: another_card(folder, load_or_create(folder), run.run_id),
    "no certificate": lambda folder, run, operator: changed(folder, certificate=""),
    "another's certificate": lambda folder, run, operator: another_certificate(folder, identity("x"), operator),
    "another run's certificate": lambda folder, run, operator: another_certificate(
        folder, load_or_create(folder), identity("another operator")
    ),
    "no weights": lambda folder, run, operator: (folder / genesis_file("stage-1")).unlink(),  # type: ignore[arg-type]
    "a damaged file": lambda folder, run, operator: damage(folder / "basis.safetensors"),
}


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2] + b"xx")


@pytest.mark.parametrize("how", BROKEN)
def test_a_folder_that_lacks_anything_is_not_enough(made: tuple[Descriptor, Identity, Path], folder: Path, how: str):
    descriptor, operator, _ = made
    me = load_or_create(folder)
    BROKEN[how](folder, descriptor, operator)
    assert recall(folder, ticket(descriptor, operator), me, "volunteer", 1) is None


def test_where_others_are_is_kept_and_the_last_of_it_when_all_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scene() -> None:
        loop, written = asyncio.get_running_loop(), asyncio.Event()

        def write(folder: Path, addresses: list[str]) -> None:
            remember_addresses(folder, addresses)
            loop.call_soon_threadsafe(written.set)

        monkeypatch.setattr("peer.network.discovery.remember_addresses", write)

        def record(name: str, libp2p: str = "") -> PeerRecord:
            return PeerRecord(peer_id=PeerId(name), address="h:1", libp2p=libp2p, role="volunteer", stage=0, slot=0)

        me = record("me", "/ip4/127.0.0.1/tcp/4000/p2p/QmMe")
        authority = Authority(RunId("ab" * 32), PeerId("operator"))
        signer = Signer(load_or_create(tmp_path / "me"), authority, b"")
        discovery = Discovery(NoDht(), signer, small_manifest(), me)  # type: ignore[arg-type]
        discovery.meet(record("other", MEETING), in_person=True)
        discovery.meet(record("silent"), in_person=True)
        keeping = asyncio.create_task(keep_remembering(tmp_path, discovery))
        await written.wait()
        keeping.cancel()
        discovery.lose(PeerId("other"))
        again = asyncio.create_task(keep_remembering(tmp_path, discovery))
        await asyncio.sleep(0)
        for task in (keeping, again):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(asyncio.wait_for(scene(), 20))
    assert (tmp_path / PEERS).read_text() == MEETING + "\n"


def test_mirrors_and_node_are_those_that_were_told_last(tmp_path: Path):
    assert (mirrors_of(tmp_path), node_of(tmp_path)) == ((), None)
    shown = certified(load_or_create(tmp_path), identity("operator"))
    for urls in (MIRRORS, ("https://c.example",), ()):
        write_membership(tmp_path, b"card", shown, urls, NODE)
        assert (mirrors_of(tmp_path), node_of(tmp_path)) == (urls, NODE)


def test_a_person_can_read_the_membership(folder: Path):
    text = (folder / MEMBERSHIP).read_text()
    assert "-----BEGIN CERTIFICATE-----" in text
    assert all(f'"{url}"' in text for url in MIRRORS)
    assert text.count("\n") > 10


@pytest.mark.parametrize("damage", [("file:///etc/passwd",), ("http://a.example", "x" * 1000), ("\xff",)])
def test_damaged_mirrors_are_none(folder: Path, damage: tuple[str, ...]):
    changed(folder, mirrors=damage, node=Endpoint(PeerId("QmNode"), damage[-1]))
    assert (mirrors_of(folder), node_of(folder)) == ((), None)


# The files of earlier versions


@pytest.fixture
def old(folder: Path) -> Path:
    """The folder as it was before there was `membership.json`: a file for each of its fields."""
    membership = read_membership(folder)
    (folder / "card").write_bytes(membership.card)
    (folder / "certificate").write_bytes(membership.certificate.encode())
    (folder / "authority").write_bytes(membership.authority.encode())
    (folder / "mirrors").write_bytes("".join(f"{url}\n" for url in MIRRORS).encode())
    (folder / "node").write_bytes(f"{NODE.peer_id} {NODE.address}\n".encode())
    (folder / MEMBERSHIP).unlink()
    return folder


def test_the_folder_of_an_earlier_version_is_all_that_is_needed(made: tuple[Descriptor, Identity, Path], old: Path):
    me = load_or_create(old)
    found = recall(old, ticket(*made[:2]), me, "volunteer", 1)
    assert found is not None
    assert (found.descriptor, found.card) == (made[0], Card(me.peer_id, "volunteer", 1, 3))
    assert (found.signed_card, found.credentials.root) == (read_membership(old).card, authority(made[1]))
    assert found.addresses == ("/ip4/127.0.0.1/tcp/9/p2p/QmFirst", MEETING)
    assert (mirrors_of(old), node_of(old)) == (MIRRORS, NODE)


def test_what_is_told_next_is_kept_in_the_place_of_the_old_files(made: tuple[Descriptor, Identity, Path], old: Path):
    me, card = load_or_create(old), read_membership(old).card
    renewed = certified(me, made[1])
    write_membership(old, card, renewed, (), NODE)
    assert not any((old / name).exists() for name in OLD_FILES)
    kept = kept_credentials(old, ticket(*made[:2]), me)
    assert kept is not None
    assert (kept.chain, mirrors_of(old)) == (renewed.chain, ())
    assert recall(old, ticket(*made[:2]), me, "volunteer", 1) is not None


@pytest.mark.parametrize("name", OLD_FILES[:3])
@pytest.mark.parametrize("damage", [None, b"", b"\xff\xfe" * 100])
def test_a_folder_of_an_earlier_version_that_lacks_anything_is_not_enough(
    made: tuple[Descriptor, Identity, Path], old: Path, name: str, damage: bytes | None
):
    (old / name).unlink()
    if damage is not None:
        (old / name).write_bytes(damage)
    assert recall(old, ticket(*made[:2]), load_or_create(old), "volunteer", 1) is None


@pytest.mark.parametrize("damage", [b"file:///etc/passwd\n", b"\xff", b"http://a.example\n" + b"x" * 1000])
def test_damaged_files_of_an_earlier_version_name_no_mirrors_and_no_node(old: Path, damage: bytes):
    (old / "mirrors").write_bytes(damage)
    (old / "node").write_bytes(damage)
    assert (mirrors_of(old), node_of(old)) == ((), None)


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: b"\0" * len(data), lambda data: data[:-7]])
def test_a_damaged_descriptor_is_written_again_and_another_runs_is_left_alone(
    made: tuple[Descriptor, Identity, Path], folder: Path, damage: Callable[[bytes], bytes]
):
    """A missing one is fetched again; a damaged one ended the peer, as if its folder were another run's."""
    descriptor, *_ = made
    marker, own = folder / DESCRIPTOR, descriptor.canonical()
    assert not claim_folder(folder, descriptor)
    marker.write_bytes(damage(own))
    assert claim_folder(folder, descriptor) == bool(damage(own))
    assert marker.read_bytes() == own
    marker.unlink()
    assert not claim_folder(folder, descriptor)
    assert marker.read_bytes() == own
    other = replace(descriptor, operator=PeerId("QmOther"))
    with pytest.raises(ResourceError, match="holds another run's files"):
        claim_folder(folder, other)
    assert marker.read_bytes() == own
    marker.write_bytes(damage(own))
    with pytest.raises(ResourceError, match="holds another run's files"):  # by its card
        claim_folder(folder, other)
