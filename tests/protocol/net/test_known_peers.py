"""Where others were last, as a folder keeps it."""

from pathlib import Path

from protocol.net.known_peers import KEPT, PEERS, recall, remember


def test_the_first_of_them_are_kept_in_order(tmp_path: Path):
    addresses = [f"/ip4/127.0.0.1/tcp/{port}/p2p/QmPeer" for port in range(4000, 4000 + KEPT + 3)]
    remember(tmp_path, addresses)
    assert recall(tmp_path) == tuple(addresses[:KEPT])
    remember(tmp_path, addresses[5:7])
    assert recall(tmp_path) == tuple(addresses[5:7])


def test_what_is_not_there_or_no_text_is_nobody(tmp_path: Path):
    assert recall(tmp_path) == ()
    (tmp_path / PEERS).write_bytes(b"\xff\xfe")
    assert recall(tmp_path) == ()
    (tmp_path / PEERS).write_text("/ip4/127.0.0.1/tcp/1/p2p/QmPeer\n" * 10_000)
    assert len(recall(tmp_path)) == KEPT
