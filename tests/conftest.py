"""What every test stands on: gRPC's environment, one torch thread, a home of its own, the event loop that peers run in,
quick tests first."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # read when grpc is imported: its fork handlers crash p2pd
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # transformers would ask a server about models that lie here

# As in a job in the background, or under nohup: neither these processes nor their children would ever hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

import pytest
import uvloop
from hypothesis import HealthCheck, settings


class UvloopPolicy(asyncio.DefaultEventLoopPolicy):
    """Runs tests in uvloop, as `peer.process` does peers, but for those that name another loop. On Python 3.11
    asyncio's own server loses a connection that it accepts while it is closed."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return uvloop.new_event_loop()


asyncio.set_event_loop_policy(UvloopPolicy())

# A shared CI machine may be slow at any moment; there the examples are the same at every run too.
settings.register_profile("here", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """The name of a parameter in a test's name: never bytes, which may differ from worker to worker (a time in a gzip
    header did, and then pytest-xdist runs nothing)."""
    return argname if isinstance(val, bytes) else None


LONG_FIRST = ("world", "devices", "lab")
"""The folders whose modules take longest. Begun last, they would leave the other lanes without work."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put real processes (tests/system) last, when everything quick has passed, and what takes long first."""
    items.sort(key=lambda item: ("system" in item.path.parts, not any(part in LONG_FIRST for part in item.path.parts)))


@pytest.fixture(autouse=True)
def one_torch_thread() -> None:
    """Where torch is in use, each test begins with one thread: quicker on small machines, and repeatable."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from or left in the user's own `~/.hetpeer`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HETPEER_HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("HETPEER_TICKET", raising=False)
        yield
