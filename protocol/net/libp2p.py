"""libp2p's daemon, a child of ours that hivemind starts: where it listens, how much it may hold, whether it answers."""

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

from protocol.addresses import WILDCARDS, is_ip, join, multiaddress
from protocol.errors import ResourceError
from protocol.limits import DHT_MESSAGE_BYTES, LIBP2P_BYTES, LIBP2P_GRACE_SECONDS, LIBP2P_MOST_BYTES
from protocol.net.tasks import Children
from protocol.trust.keys import Identity

START_SECONDS = 60.0

ANSWER_SECONDS = 5.0
"""The time for an answer that takes a millisecond; this process may be busy itself."""


async def begin(kind: Any, identity: Identity, host: str, listens: Sequence[str]) -> Any:
    """Start a daemon that listens at these addresses. Returns what hivemind makes of it, of this `kind`
    (`hivemind.p2p.P2P`).

    Raises:
        ResourceError: it does not start.
    """
    from hivemind.p2p.p2p_daemon import P2PDaemonError

    _spawn_apart()
    try:
        p2p = await kind.create(
            host_maddrs=listens,
            identity_path=str(identity.path),
            check_if_identity_free=False,
            nat_port_map=False,
            auto_nat=False,
            use_relay=False,
            startup_timeout=START_SECONDS,
            persistent_conn_max_msg_size=DHT_MESSAGE_BYTES,
        )
    except P2PDaemonError as error:
        raise ResourceError(f"libp2p's daemon did not start on {host}: {error}") from None
    if hasattr(resource, "prlimit"):
        with suppress(ProcessLookupError, PermissionError):
            resource.prlimit(p2p._child.pid, resource.RLIMIT_DATA, (LIBP2P_MOST_BYTES, LIBP2P_MOST_BYTES))
    return p2p


async def end(p2p: Any) -> None:
    """End a daemon at once: one that hangs does not end for the asking.

    It is killed after hivemind has asked it, and not by `Process.kill`: both look first whether the process has ended,
    and whichever looks at a dead one takes its exit code from asyncio, which then complains on standard error.
    """
    p2p._terminate()
    if p2p._child.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(p2p._child.pid, signal.SIGKILL)
    await p2p._child.wait()


async def answers(p2p: Any, tasks: Children) -> bool:
    """Whether the daemon answers hivemind, over the one connection between the two, by which all calls go, both ways.
    If either end has ceased to read it, the daemon and this process both live, and nobody finds this node.

    It is asked to call somebody whose id is none. To any other, to itself too, it would look for a way: among peers
    that may all be cut off. A question without an answer stays among `tasks`.
    """
    from hivemind.p2p import PeerID
    from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, P2PHandlerError

    asked = tasks.spawn(p2p._client.call_unary_handler(PeerID(b"nobody"), "hetpeer/beat", b""))
    asked.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait((asked,), timeout=ANSWER_SECONDS)  # and not cancelled: see `Calls.ask`
    if not asked.done():
        return False
    return isinstance(asked.exception(), P2PDaemonError | P2PHandlerError)  # "length greater than remaining"


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


def require_free(host: str, port: int) -> list[str]:
    """Require that a port is free on all addresses of `host`. Returns their multiaddresses: one, but for `::`, which is
    IPv4 as well.

    Two libp2p daemons on one port both start without error (SO_REUSEPORT); so look first.

    Raises:
        ResourceError: the port is taken, or the address is not this machine's.
    """
    try:
        addresses: tuple[str, ...]
        if host == "::":
            addresses = WILDCARDS
        elif is_ip(host):
            addresses = (host,)
        else:  # the address of a name, of IPv4 if it has one
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses = (str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0]),)
        for address in addresses:
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if probe.family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
    except OSError as error:
        raise ResourceError(f"cannot listen on {join(host, port)}: {error.strerror}; try another --listen") from None
    return [multiaddress(address, port) for address in addresses]


def again(listens: Sequence[str], visible: Sequence[str]) -> list[str]:
    """The addresses at which a daemon listened, with the ports that it was given in the place of 0."""
    ports = {address.split("/")[1]: address.split("/")[4] for address in visible}
    return [
        f"{each.removesuffix('/0')}/{ports[each.split('/')[1]]}" if each.endswith("/0") else each for each in listens
    ]
