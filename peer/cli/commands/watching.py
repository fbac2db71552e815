"""Who else hears a daemon: its log of events, in its folder, and Prometheus, if asked for."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from peer.compute.machine import family_bytes
from peer.process import Listeners, Terminal
from peer.telemetry.events import Listener, Progress
from peer.telemetry.journal import Journal


@contextmanager
def watched(terminal: Terminal, folder: Path, metrics: str | None) -> Iterator[Terminal]:
    """A terminal that also writes `folder`'s log of events, and serves `metrics` ([HOST:]PORT; None: none).

    Raises:
        UserError: that is no address, or cannot be listened to.
    """
    with ExitStack() as stack:
        listeners: list[Listener] = [terminal.listener, Journal(folder, terminal.emit, terminal.status)]
        heard = replace(terminal, listener=Listeners(listeners))
        if metrics is not None:
            from peer.telemetry.prometheus import Metrics, served

            counting = Metrics(terminal.status, family_bytes)
            url = stack.enter_context(served(counting.registry, metrics))
            listeners.append(counting)
            heard.emit(Progress(f"metrics for Prometheus are at {url}"))
        yield heard
