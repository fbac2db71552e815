"""The gate of a port, over real sockets: who connects from 127.0.0.2 is another address than 127.0.0.1, and who does
from 127.0.1.1 is at another site."""

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import pytest

from bootstrap.node import as_operator
from protocol import descriptors
from protocol.errors import ResourceError, UnreachableError
from protocol.limits import REGISTRATION_CONNECTIONS_OF_ADDRESS, REGISTRATION_MESSAGE_BYTES, REGISTRATION_STREAMS
from protocol.manifest import message_bytes
from protocol.net import connection_limits
from protocol.net import gate as gates
from protocol.net.allowances import RateLimit
from protocol.net.channels import connect_to_registration, registration_options
from protocol.net.connection_limits import OF_REGISTRATION, ConnectionLimits, State
from protocol.net.gate import Gate
from protocol.net.tls_probe import anybody
from protocol.schemas import run_pb2, run_pb2_grpc
from protocol.trust import certificates
from tests.reference.admitted import identity

OPERATOR = identity("operator")
ROOT = certificates.authority(OPERATOR)


@dataclass
class Service(run_pb2_grpc.RunServicer):
    """Says who called, and answers once `let_go` is set."""

    gate: Gate
    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    open: int = 0
    entered: asyncio.Event = field(default_factory=asyncio.Event)

    async def Describe(self, request: Any, context: Any) -> run_pb2.DescribeReply:
        self.open += 1
        self.entered.set()
        try:
            await self.let_go.wait()
        finally:
            self.open -= 1
        return run_pb2.DescribeReply(descriptor_json=self.gate.caller(context.peer()).encode())

    async def Measure(self, request: run_pb2.MeasureRequest, context: Any) -> run_pb2.MeasureReply:
        self.gate.authenticate(context.peer(), OPERATOR.peer_id)
        return run_pb2.MeasureReply(piece=request.piece[:1])


@dataclass
class House:
    """A gate, and what is behind it."""

    gate: Gate
    service: Service
    made: list[asyncio.StreamWriter] = field(default_factory=list)

    async def describe(self, host: str = "127.0.0.1") -> str:
        """The name of a newcomer for this house, who calls at this host."""
        async with connect_to_registration(f"{host}:{self.gate.port}", OPERATOR.peer_id, ROOT) as channel:
            reply = await run_pb2_grpc.RunStub(channel).Describe(run_pb2.DescribeRequest(), timeout=20)
            return reply.descriptor_json.decode()

    async def connect(
        self, source: str = "127.0.0.2", speaks: bool = True
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that begins a handshake, if it `speaks`, and does not go on with it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.gate.port, local_addr=(source, 0))
        if speaks:
            writer.write(b"\x16\x03\x01\x02\x00\x01")
        self.made.append(writer)
        return reader, writer

    def of_state(self, state: State) -> list[str]:
        """The addresses of the connections in a state."""
        return [connection.host for connection in self.gate.ends if connection.state is state]


def play(
    scene: Callable[[House], Awaitable[None]],
    limits: ConnectionLimits = OF_REGISTRATION,
    clock: Callable[[], float] | None = None,
    rate: RateLimit | None = None,
) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), serving(limits) as house:
            house.gate.clock = clock or house.gate.clock
            house.gate.table.rate = rate or house.gate.table.rate
            await scene(house)

    asyncio.run(run())


@asynccontextmanager
async def serving(limits: ConnectionLimits) -> AsyncIterator[House]:
    gate = await gates.bind("127.0.0.1", 0, limits, 1.0)
    server, service = grpc.aio.server(options=registration_options()), Service(gate)
    service.let_go.set()
    run_pb2_grpc.add_RunServicer_to_server(service, server)
    house = House(gate, service)
    try:
        await gate.serve(server, as_operator(OPERATOR, 600.0).credentials.for_registration())
        yield house
    finally:
        for writer in house.made:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        await gate.close(0.0)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the other end hangs up; waits for it."""
    with suppress(ConnectionError):
        return await reader.read() == b""
    return True


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def test_a_caller_behind_the_gate_is_known_by_its_true_address():
    async def scene(house: House) -> None:
        assert (await house.describe()).startswith("ipv4:127.0.0.1:")
        where = {"ssl": anybody(), "local_addr": ("127.0.0.9", 0)}
        _, writer = await asyncio.open_connection("127.0.0.1", house.gate.port, **where)  # TLS goes through whole
        port = writer.get_extra_info("sockname")[1]
        assert f"ipv4:127.0.0.9:{port}" in [end.name for end in house.gate.callers.values()]
        writer.close()
        await until(lambda: not house.gate.callers and not house.gate.ends)

    play(scene)


def test_one_address_has_so_many_connections_and_others_are_answered_meanwhile():
    async def scene(house: House) -> None:
        connections = [await house.connect() for _ in range(4 * REGISTRATION_CONNECTIONS_OF_ADDRESS)]
        await until(lambda: len(house.of_state(State.QUEUED)) == 3 * REGISTRATION_CONNECTIONS_OF_ADDRESS)
        assert len(house.of_state(State.PENDING)) == REGISTRATION_CONNECTIONS_OF_ADDRESS
        assert await house.describe()
        connections[0][1].close()  # which makes room for one that waits
        await until(lambda: len(house.of_state(State.QUEUED)) == 3 * REGISTRATION_CONNECTIONS_OF_ADDRESS - 1)
        assert house.of_state(State.PENDING).count("127.0.0.2") == REGISTRATION_CONNECTIONS_OF_ADDRESS
        for _, writer in connections:
            writer.close()
        await until(lambda: not house.gate.ends)

    play(scene)


def test_silent_connections_reach_no_server_and_the_oldest_makes_way():
    async def scene(house: House) -> None:
        first = await house.connect("127.0.0.2", speaks=False)
        await until(lambda: len(house.gate.ends) == 1)
        silent = [await house.connect("127.0.0.2", speaks=False) for _ in range(3)]
        silent += [await house.connect("127.0.1.1", speaks=False)]
        assert await ended(first[0])
        assert await house.describe()
        assert await ended(silent[0][0])
        await until(lambda: not house.gate.callers)
        assert house.of_state(State.SILENT) == ["127.0.0.2", "127.0.0.2", "127.0.1.1"]

    play(scene, replace(OF_REGISTRATION, waiting=4))


def test_a_connection_that_says_nothing_or_does_not_authenticate_ends_in_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_limits, "TLS_SECONDS", 0.1)

    async def scene(house: House) -> None:
        assert await ended((await house.connect(speaks=False))[0])
        house.service.let_go.clear()
        with pytest.raises(UnreachableError):
            await house.describe()  # a call that goes on
        assert house.service.entered.is_set()
        await until(lambda: not house.gate.ends and not house.service.open)

    play(scene, replace(OF_REGISTRATION, pending_seconds=0.3))


def test_a_connection_that_has_authenticated_stays_and_leaves_its_place_to_others(monkeypatch: pytest.MonkeyPatch):
    now = [100.0]

    async def scene(house: House) -> None:
        async with connect_to_registration(f"127.0.0.1:{house.gate.port}", OPERATOR.peer_id, ROOT) as channel:
            stub = run_pb2_grpc.RunStub(channel)
            await stub.Measure(run_pb2.MeasureRequest(piece=b"1"), timeout=20)
            assert house.of_state(State.ESTABLISHED) == ["127.0.0.1"]
            for _ in range(4):
                await house.connect("127.0.0.1")
            await until(lambda: len(house.of_state(State.QUEUED)) == 3)
            now[0] += 1000.0
            await until(lambda: house.of_state(State.ESTABLISHED) == [end.host for end in house.gate.ends])
            assert await stub.Measure(run_pb2.MeasureRequest(piece=b"1"), timeout=20)

    limits = replace(OF_REGISTRATION, pending=1, established=4, established_of_peer=4)
    play(scene, limits, clock=lambda: now[0])


def test_the_descriptors_in_reserve_are_for_no_connection(monkeypatch: pytest.MonkeyPatch):
    async def scene(house: House) -> None:
        assert await house.describe()
        monkeypatch.setattr(descriptors, "for_connections", lambda: 0)
        assert await ended((await house.connect())[0])
        with pytest.raises(UnreachableError):
            await house.describe()
        monkeypatch.undo()
        assert await house.describe()

    play(scene)


def test_an_address_that_connects_again_and_again_is_let_through_no_more():
    async def scene(house: House) -> None:
        for _ in range(2):
            (await house.connect())[1].close()
        assert await ended((await house.connect())[0])
        assert await house.describe()

    play(scene, rate=RateLimit(2, 3600.0))


def test_a_slow_reader_stops_the_sender_and_every_byte_arrives():
    sent = os.urandom(2**24)

    async def scene(house: House) -> None:
        received = asyncio.get_running_loop().create_future()
        resume = asyncio.Event()

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await resume.wait()
            received.set_result(await reader.readexactly(len(sent)))
            writer.write(sent[::-1])
            writer.close()

        inner = await asyncio.start_server(take, "127.0.0.1", 0)
        await house.gate.forward_to(inner.sockets[0].getsockname()[1])
        reader, writer = await house.connect(speaks=False)
        writer.write(sent)
        await until(lambda: any(end.other and not end.transport.is_reading() for end in house.gate.ends.values()))
        resume.set()
        assert await received == sent
        assert await reader.read() == sent[::-1]
        inner.close()

    play(scene)


def test_a_server_that_speaks_first_is_heard():
    async def scene(house: House) -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"welcome")
            writer.close()

        inner = await asyncio.start_server(greet, "127.0.0.1", 0)
        await house.gate.forward_to(inner.sockets[0].getsockname()[1])
        connections = await asyncio.gather(*(house.connect(f"127.0.{number}.1") for number in range(40)))
        answers = await asyncio.gather(*(reader.read() for reader, _ in connections))
        assert answers == [b"welcome"] * len(connections)
        inner.close()

    play(scene)


def test_the_server_behind_is_reached_by_this_user_alone():
    async def scene(house: House) -> None:
        path = str(house.gate.target)
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        assert stat.S_ISSOCK(os.stat(path).st_mode)
        house.made.append((await house.gate.connect())[1])

    play(scene)


def test_a_gate_that_served_nothing_leaves_its_port_free():
    async def scene() -> None:
        gate = await gates.bind("127.0.0.1", 0, OF_REGISTRATION, 1.0)
        port = gate.port
        await gate.close(0.0)
        again = await gates.bind("127.0.0.1", port, OF_REGISTRATION, 1.0)
        await again.close(0.0)

    asyncio.run(scene())


@pytest.mark.parametrize("turns", range(6))
def test_a_connection_that_was_accepted_as_the_gate_closed_ends(turns: int):
    async def scene(house: House) -> None:
        with socket.create_connection(("127.0.0.1", house.gate.port)) as calling, suppress(ConnectionResetError):
            for _ in range(turns):
                await asyncio.sleep(0)
            await house.gate.close(0.0)
            calling.setblocking(False)
            assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(calling, 1), 10) == b""

    play(scene)


def test_the_door_takes_no_message_longer_than_a_piece_to_measure_with():
    async def scene(house: House) -> None:
        async with connect_to_registration(f"127.0.0.1:{house.gate.port}", OPERATOR.peer_id, ROOT) as channel:
            stub = run_pb2_grpc.RunStub(channel)
            assert await stub.Measure(run_pb2.MeasureRequest(piece=bytes(2**18)), timeout=20)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.Measure(run_pb2.MeasureRequest(piece=bytes(REGISTRATION_MESSAGE_BYTES)), timeout=20)
            assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED

    assert message_bytes(None) > REGISTRATION_MESSAGE_BYTES
    play(scene, replace(OF_REGISTRATION, established=1, established_of_peer=1))


def test_the_door_answers_so_many_calls_of_a_connection_at_once():
    async def scene(house: House) -> None:
        async with connect_to_registration(f"127.0.0.1:{house.gate.port}", OPERATOR.peer_id, ROOT) as channel:
            stub = run_pb2_grpc.RunStub(channel)
            await stub.Describe(run_pb2.DescribeRequest(), timeout=20)  # from now on the caller knows the limit
            house.service.let_go.clear()
            calls = [stub.Describe(run_pb2.DescribeRequest(), timeout=20) for _ in range(2 * REGISTRATION_STREAMS)]
            await until(lambda: house.service.open == REGISTRATION_STREAMS)
            for call in calls[REGISTRATION_STREAMS:]:
                call.cancel()
            house.service.let_go.set()
            await asyncio.gather(*calls[:REGISTRATION_STREAMS])

    play(scene)


def test_a_port_that_is_taken_is_said_to_be():
    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(ResourceError, match=f"cannot listen on 127.0.0.1:{port}: the port is taken"):
                await gates.bind("127.0.0.1", port, OF_REGISTRATION, 1.0)

    asyncio.run(scene())


# Other addresses


def test_a_gate_listens_at_several_hosts_at_one_port():
    async def scene(on: House) -> None:
        on.service.let_go.set()
        await on.gate.add("127.0.0.3")
        await on.gate.forward_to(on.gate.target)
        assert [(await on.describe(host)).startswith("ipv4:127.0.0.1:") for host in ("127.0.0.1", "127.0.0.3")]

    play(scene)


def test_a_gate_that_moves_hangs_up_on_its_callers_and_listens_elsewhere_at_the_same_port():
    async def scene(on: House) -> None:
        port = on.gate.port
        on.service.let_go.clear()
        waiting = asyncio.create_task(on.describe())
        await on.service.entered.wait()
        await on.gate.move(["::1", "127.0.0.3"])
        with pytest.raises(UnreachableError):
            await asyncio.wait_for(waiting, 10)  # else a TimeoutError: the call itself waits longer
        assert on.gate.address == ("::1", port)
        on.service.let_go.set()
        assert (await on.describe("[::1]")).startswith("ipv6:[::1]:")
        assert await on.describe("127.0.0.3")
        with pytest.raises(UnreachableError):
            await on.describe()
        await on.gate.move(["::1"])  # as after the loss of another address
        assert await on.describe("[::1]")

    play(scene)


def test_a_gate_whose_port_is_taken_at_the_new_host_takes_another():
    async def scene(on: House) -> None:
        on.service.let_go.set()
        async with await asyncio.start_server(lambda reader, writer: writer.close(), "::1", on.gate.port):
            had = on.gate.port
            await on.gate.move(["::1"])
            assert on.gate.port != had
            assert await on.describe("[::1]")

    play(scene)


def test_a_gate_that_could_not_move_moves_later():
    async def scene(on: House) -> None:
        on.service.let_go.set()
        with pytest.raises(ResourceError, match="cannot listen on"):
            await on.gate.move(["192.0.2.1"])
        await on.gate.move(["127.0.0.1"])
        assert await on.describe()

    play(scene)
