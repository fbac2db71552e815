"""The link between the machines of a datacenter: who knows the secret, and who does not."""

import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue

import pytest

from peer.network.machine_link import MOST_FIRST_BYTES, LinkListener, TlsLink, connect_machine, read_secret
from protocol.errors import FormatError, ResourceError, UserError

SECRET, OTHER = b"a secret, all of chance, of 32 bytes", b"another, all of chance, of 32 bytes."
HOST = "127.0.0.1"
SECONDS = 20


class First:
    """The first machine: the callers that it has let in, and their first messages."""

    def __init__(self) -> None:
        self.served: Queue[tuple[TlsLink, bytes]] = Queue()
        self.listener = LinkListener(HOST, 0, SECRET, lambda link, first: self.served.put((link, first)))
        self.port = self.listener.port

    def link(self) -> TlsLink:
        return self.served.get(timeout=SECONDS)[0]

    def has_served(self) -> bool:
        """Whether it has let somebody in, once another caller after them has been served."""
        last = connect_machine(HOST, self.port, SECRET, b"the last one")
        try:
            link, first = self.served.get(timeout=SECONDS)
            link.close()
            return first != b"the last one"
        finally:
            last.close()


@pytest.fixture
def first() -> Iterator[First]:
    found = First()
    try:
        yield found
    finally:
        found.listener.close()
        while True:
            try:
                found.served.get_nowait()[0].close()
            except Empty:
                return


@contextmanager
def linked(first: First) -> Iterator[tuple[TlsLink, TlsLink]]:
    ours = connect_machine(HOST, first.port, SECRET, b"hello")
    theirs = first.link()
    try:
        yield ours, theirs
    finally:
        ours.close()
        theirs.close()


def keep_for_ever(link: TlsLink) -> None:
    while True:
        link.keep()


def closed(caller: socket.socket) -> bool:
    """Whether the first machine hangs up on it."""
    caller.settimeout(SECONDS)
    try:
        while caller.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def test_messages_and_pieces_of_memory_come_as_they_were_sent_both_ways(first: First):
    with linked(first) as (ours, theirs):
        sent, got = bytearray(range(256)) * 4096, bytearray(2**20)
        sending = threading.Thread(
            target=ours.send, args=(b"order", [memoryview(sent)[: 2**19], memoryview(sent)[2**19 :]])
        )
        sending.start()
        assert theirs.receive() == b"order"
        theirs.receive_into(memoryview(got))
        sending.join()
        assert got == sent
        theirs.send(b"answer")
        assert ours.receive() == b"answer"
        assert not ours.waits()
        assert not theirs.waits()
        assert ours.interface == first.listener.interface == "lo"


def test_it_is_tls_1_3_and_a_stranger_who_looks_on_sees_no_word(first: First):
    with linked(first) as (ours, theirs):
        assert ours.connection.version() == theirs.connection.version() == "TLSv1.3"
        assert ours.connection.getpeercert(True) == theirs.connection.getpeercert(True)  # both have proved one key


def test_who_has_another_secret_is_not_let_in_and_lets_nobody_in(first: First):
    with pytest.raises(OSError, match="--secret-file must be the same on all machines"):
        connect_machine(HOST, first.port, OTHER, b"hello")
    assert not first.has_served()


def test_a_caller_without_a_certificate_is_not_let_in(first: First):
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def speak() -> None:
        with socket.create_connection((HOST, first.port), 5) as plain, context.wrap_socket(plain) as caller:
            caller.sendall(struct.pack(">I", 5) + b"hello")
            assert caller.recv(1)

    with pytest.raises((ssl.SSLError, ConnectionError)):  # a refusal, or its end where the line was quicker
        speak()
    assert not first.has_served()


def garbage(caller: socket.socket) -> None:
    caller.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)


def nothing(caller: socket.socket) -> None:
    caller.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("say", [garbage, nothing])
def test_who_speaks_no_tls_is_hung_up_on(first: First, say: Callable[[socket.socket], None]):
    with socket.create_connection((HOST, first.port)) as caller:
        say(caller)
        assert closed(caller)
    assert not first.has_served()


def test_the_bytes_of_a_machine_are_of_no_use_to_who_sends_them_again(first: First):
    """A relay between both records what the caller says, and says it again."""
    recorded = bytearray()
    with socket.create_server((HOST, 0)) as between:

        def relay() -> None:
            caller, _ = between.accept()
            with caller, socket.create_connection((HOST, first.port)) as onward:
                back = threading.Thread(target=pump, args=(onward, caller, bytearray()))
                back.start()
                pump(caller, onward, recorded)
                back.join()

        def pump(source: socket.socket, sink: socket.socket, seen: bytearray) -> None:
            try:
                while data := source.recv(65536):
                    seen += data
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)
            except OSError:
                pass

        relaying = threading.Thread(target=relay)
        relaying.start()
        ours = connect_machine(HOST, between.getsockname()[1], SECRET, b"hello")
        theirs = first.link()
        ours.close()
        theirs.close()
        relaying.join(SECONDS)
    assert len(recorded) > 500
    with socket.create_connection((HOST, first.port)) as caller:
        caller.sendall(recorded)
        assert closed(caller)
    assert not first.has_served()


def test_a_first_message_that_is_too_long_is_not_waited_for(first: First):
    caller = connect_machine(HOST, first.port, SECRET, bytes(MOST_FIRST_BYTES + 1))
    try:
        with pytest.raises(OSError, match=r"closed the connection|reset"):
            caller.receive()
    finally:
        caller.close()
    assert not first.has_served()


def test_a_message_that_says_it_is_too_long_is_refused_before_any_of_it_is_held(first: First):
    with linked(first) as (ours, theirs):
        ours.connection.sendall(struct.pack(">I", 2**32 - 1))
        with pytest.raises(FormatError, match=f"a message of {2**32 - 1} bytes; at most {2**24}"):
            theirs.receive()


def test_more_callers_than_may_shake_hands_at_once_are_closed_and_hold_up_nobody_for_long(
    first: First, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("peer.network.machine_link.HANDSHAKE_SECONDS", 1.0)
    silent = [socket.create_connection((HOST, first.port)) for _ in range(40)]
    try:
        assert all(closed(each) for each in silent)
    finally:
        for each in silent:
            each.close()
    assert not first.has_served()


def test_a_side_that_is_silent_or_takes_nothing_is_noticed_and_one_that_beats_is_not(
    first: First, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("peer.network.machine_link.SILENCE_SECONDS", 0.5)
    monkeypatch.setattr("peer.network.machine_link.MACHINE_HEARTBEAT_SECONDS", 0.0)
    with linked(first) as (ours, theirs):
        for _ in range(3):
            ours.keep()
            assert theirs.receive() == b""
            theirs.keep()
        with pytest.raises(TimeoutError, match="has been silent for"):
            theirs.receive()
        with pytest.raises(TimeoutError, match="has been silent for"):
            keep_for_ever(theirs)
        with pytest.raises(TimeoutError, match="has taken nothing for"):
            ours.send(b"", [memoryview(bytes(2**26))])


def test_a_side_that_hangs_up_is_noticed(first: First):
    with linked(first) as (ours, theirs):
        ours.close()
        with pytest.raises(OSError, match="closed the connection"):
            theirs.receive()


def test_who_listens_no_longer_is_not_reached_and_links_go_on(first: First):
    with linked(first) as (ours, theirs):
        first.listener.close()
        with pytest.raises(ConnectionRefusedError):
            connect_machine(HOST, first.port, SECRET, b"hello")
        ours.send(b"still here")
        assert theirs.receive() == b"still here"


@pytest.mark.parametrize("host", ["192.0.2.1", "0.0.0.0"])
def test_the_first_machine_is_named_by_an_address_of_its_own(host: str):
    with pytest.raises(UserError, match="is no address of this machine"):
        LinkListener(host, 0, SECRET, lambda link, first: None)


def test_a_port_that_is_taken_is_one_clear_line(first: First):
    with pytest.raises(ResourceError, match=rf"--rendezvous {HOST}:{first.port} cannot be listened at: .*in use"):
        LinkListener(HOST, first.port, SECRET, lambda link, first: None)


def test_the_first_machine_makes_a_secret_that_nobody_else_can_read_and_keeps_it(tmp_path: Path):
    file = tmp_path / "secret"
    made = read_secret(file, make=True)
    assert len(made) == 64
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_secret(file, make=True) == read_secret(file, make=False) == made
    assert read_secret(tmp_path / "second", make=True) != made


def test_a_secret_that_is_missing_short_long_or_open_to_others_is_refused(tmp_path: Path):
    file = tmp_path / "secret"
    with pytest.raises(ResourceError, match="is missing: copy it from the first machine"):
        read_secret(file, make=False)
    for size in (0, 31, 4097):
        file.write_bytes(b"x" * size)
        file.chmod(0o600)
        with pytest.raises(UserError, match=f"has {size} bytes"):
            read_secret(file, make=True)
    file.write_bytes(b"x" * 32)
    file.chmod(0o640)
    with pytest.raises(UserError, match="can be read by others: chmod 600"):
        read_secret(file, make=False)
