"""A newcomer's trial, as the newcomer sees it: round after round it asks whether what it contributes counts now."""

from collections.abc import Awaitable, Callable
from functools import partial

from peer.network.admission import Admitted
from peer.network.discovery import Discovery
from peer.telemetry.events import Listener, Progress
from protocol.errors import HetpeerError


async def stand_trial(discovery: Discovery, ask: Callable[[], Awaitable[Admitted]], emit: Listener) -> None:
    """While this peer is on trial, ask for its next card after each round; with one that lets its contributions count
    the trial is over. A node that does not answer is asked again after the next round."""
    if not discovery.record.on_trial:
        return
    emit(Progress("on trial: the run's operator looks at a first contribution before any of them counts"))
    while discovery.record.on_trial:
        await discovery.news.until(partial(_has_finished_more, discovery, discovery.record.round))
        try:
            admitted = await ask()
        except HetpeerError as error:
            emit(Progress(f"still on trial: {error}"))
            continue
        if not admitted.card.on_trial:
            discovery.signer.card = admitted.signed_card  # and, in the same breath, the record that goes with it
            discovery.tell(on_trial=False, slot=admitted.card.slot)
    await discovery.publish()
    emit(Progress("the trial is over: what this peer contributes counts from now on"))


def _has_finished_more(discovery: Discovery, rounds: int) -> bool:
    return discovery.record.round > rounds
