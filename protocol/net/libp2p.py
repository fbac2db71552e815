"""libp2p's daemon, a child of ours that hivemind starts: how much it may hold, and whether it answers. It listens on
loopback, behind a gate (`protocol.net.gate`)."""

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import psutil

from protocol.addresses import LOOPBACK, WILDCARDS, multiaddress
from protocol.errors import ResourceError
from protocol.limits import DHT_MESSAGE_BYTES, LIBP2P_BYTES, LIBP2P_GRACE_SECONDS, LIBP2P_MOST_BYTES
from protocol.net.socket_folder import socket_folder
from protocol.net.tasks import Children
from protocol.trust.keys import Identity

P2PD_START_SECONDS = 60.0

P2PD_TIMEOUT_SECONDS = 5.0
"""The time for an answer that takes a millisecond; this process may be busy itself."""


async def begin(kind: Any, identity: Identity, announces: Sequence[str]) -> Any:
    """Start a daemon that listens at any port on loopback, and tells others to dial it at the addresses `announces`.
    Returns what hivemind makes of it, of this `kind` (`hivemind.p2p.P2P`).

    Raises:
        ResourceError: it does not start.
    """
    from hivemind.p2p.p2p_daemon import P2PDaemonError

    _spawn_apart()
    kind._UNIX_SOCKET_PREFIX = f"/unix{socket_folder()}/"
    try:
        p2p = await kind.create(
            host_maddrs=[multiaddress(LOOPBACK, 0)],
            announce_maddrs=announces,
            identity_path=str(identity.path),
            check_if_identity_free=False,
            nat_port_map=False,
            auto_nat=False,
            use_relay=False,
            startup_timeout=P2PD_START_SECONDS,
            persistent_conn_max_msg_size=DHT_MESSAGE_BYTES,
        )
    except P2PDaemonError as error:
        raise ResourceError(f"libp2p's daemon did not start: {error}") from None
    if hasattr(resource, "prlimit"):
        with suppress(ProcessLookupError, PermissionError):
            resource.prlimit(p2p._child.pid, resource.RLIMIT_DATA, (LIBP2P_MOST_BYTES, LIBP2P_MOST_BYTES))
    return p2p


def port_of(p2p: Any) -> int:
    """The port on loopback at which the daemon listens.

    Raises:
        ResourceError: it does not, or has ended.
    """
    try:
        sockets = psutil.Process(p2p._child.pid).net_connections("tcp")
        return int(next(socket.laddr.port for socket in sockets if socket.status == psutil.CONN_LISTEN))
    except (psutil.Error, StopIteration):
        raise ResourceError("libp2p's daemon has ended as soon as it was started") from None


async def end(p2p: Any) -> None:
    """Kill a libp2p daemon, as one that hangs does not end when it is asked to, and wait for its end.

    hivemind's `_terminate` asks it first. `Process.kill` would then poll the process before it kills; such a poll of a
    dead process takes the exit code that asyncio waits for, and asyncio complains on standard error. Hence `os.kill`.
    """
    p2p._terminate()
    if p2p._child.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(p2p._child.pid, signal.SIGKILL)
    await p2p._child.wait()


async def p2pd_answers(p2p: Any, tasks: Children) -> bool:
    """Whether the daemon answers hivemind, over the one connection between the two, by which all calls go, both ways.
    If either end has ceased to read it, the daemon and this process both live, and nobody finds this node.

    It is asked to call somebody whose id is none. To any other, to itself too, it would look for a way: among peers
    that may all be cut off. A question without an answer stays among `tasks`.
    """
    from hivemind.p2p import PeerID
    from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, P2PHandlerError

    call = tasks.spawn(p2p._client.call_unary_handler(PeerID(b"nobody"), "hetpeer/beat", b""))
    call.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait((call,), timeout=P2PD_TIMEOUT_SECONDS)  # and not cancelled: see `Calls.ask`
    if not call.done():
        return False
    return isinstance(call.exception(), P2PDaemonError | P2PHandlerError)  # "length greater than remaining"


def held_bytes(p2p: Any) -> int:
    """The bytes that the daemon holds in memory."""
    try:
        return int(psutil.Process(p2p._child.pid).memory_info().rss)
    except psutil.Error:
        return 0


def forget_ended(p2p: Any) -> None:
    """Forget the calls that have ended: hivemind keeps for ever a call that its caller took back."""
    tasks = p2p._client.control._handler_tasks
    for call in [call for call, task in tasks.items() if task.done()]:
        del tasks[call]


def _spawn_apart() -> None:
    """Give libp2p's daemons sessions of their own, for Ctrl-C is for us, who still have to say goodbye through them;
    and bounds that hivemind does not know of."""
    from hivemind.p2p import p2p_daemon

    async def spawn(program: str, *rest: str, env: dict[str, str], **options: Any) -> Any:
        env = env | {"GOMEMLIMIT": str(LIBP2P_BYTES // 2)}  # from here on Go looks harder for what it can free
        grace = f"-connGrace={LIBP2P_GRACE_SECONDS}s"
        return await asyncio.create_subprocess_exec(program, *rest, grace, env=env, start_new_session=True, **options)

    subprocess = SimpleNamespace(**(vars(asyncio.subprocess) | {"create_subprocess_exec": spawn}))
    p2p_daemon.asyncio = SimpleNamespace(**(vars(asyncio) | {"subprocess": subprocess}))


def announced(host: str, gate: tuple[str, int]) -> list[str]:
    """The multiaddresses under which others dial a daemon behind a gate that is bound to this IP address and port for
    `host`; of a wildcard, those of this machine's interfaces, and of `0.0.0.0`, the IPv4 ones."""
    bound, port = gate
    if bound not in WILDCARDS:
        return [multiaddress(bound, port)]
    families = (socket.AF_INET,) if host == "0.0.0.0" else (socket.AF_INET, socket.AF_INET6)
    assigned = [address for of_interface in psutil.net_if_addrs().values() for address in of_interface]
    hosts = [address.address for address in assigned if address.family in families]
    return [multiaddress(host, port) for host in dict.fromkeys(hosts) if "%" not in host]  # no link-local ones
