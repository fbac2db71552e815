"""How a peer keeps its place in the run: it renews its certificate, and asks for a better card while it is on trial.

A certificate is renewed long before it ends: channels that are open stay, and new ones show the new certificate.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from peer.network.admission import Admitted
from peer.network.discovery import Discovery
from peer.telemetry.events import CertificateRenewed, Listener, Progress
from protocol.errors import HetpeerError
from protocol.net.allowances import pause_after
from protocol.net.channels import Credentials
from protocol.wording import lasting

RENEWED_AFTER = 2 / 3
"""The share of a certificate's life after which it is renewed. The rest is for a bootstrap node that is away."""

LEAST_PAUSE_SECONDS = 1.0

MOST_PAUSE_SECONDS = 600.0

Renew = Callable[[], Awaitable[bytes]]
"""A function that asks for a new certificate; raises HetpeerError if there is none now."""


async def keep_renewing(
    credentials: Credentials,
    renew: Renew,
    emit: Listener,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Renew the certificate for as long as this peer lives; if no bootstrap node answers, say so and go on trying."""
    while True:
        ends = credentials.ends
        left = ends - clock()
        if left > 0:  # one that has ended is renewed at once
            await sleep(max(LEAST_PAUSE_SECONDS, left * RENEWED_AFTER * random.uniform(0.9, 1.0)))
        first, tries, late = max(LEAST_PAUSE_SECONDS, (ends - clock()) / 16), 0, 0
        while True:
            try:
                credentials.chain = await renew()
                break
            except HetpeerError as error:
                left, tries = ends - clock(), tries + 1
                if left > 0:  # the nearer the end, the more often
                    pause = min(pause_after(tries, first, MOST_PAUSE_SECONDS), max(LEAST_PAUSE_SECONDS, left / 4))
                    state = f"this peer's certificate ends in {lasting(left)}"
                else:
                    late += 1
                    pause = pause_after(late, LEAST_PAUSE_SECONDS, MOST_PAUSE_SECONDS)
                    state = "this peer's certificate has ended: nobody new talks to it until it is renewed"
                emit(Progress(f"{state}, and cannot be renewed: {error}; trying again in {pause:.0f} s"))
                await sleep(pause * random.uniform(0.75, 1.25))
        emit(CertificateRenewed(credentials.ends))
        if credentials.ends <= clock():
            emit(Progress("this peer's new certificate has ended by this machine's clock, which must be wrong"))
            await sleep(MOST_PAUSE_SECONDS)


async def stand_trial(discovery: Discovery, ask: Callable[[], Awaitable[Admitted]], emit: Listener) -> None:
    """While this peer is on trial, `ask` for its next card after each round; with a card that lets its contributions
    count the trial is over. A node that does not answer is asked again after the next round."""
    if not discovery.record.on_trial:
        return
    emit(Progress("on trial: the run's operator looks at a first contribution before any of them counts"))
    while discovery.record.on_trial:
        asked_after = discovery.record.round
        while discovery.record.round <= asked_after:
            await discovery.news.wait()
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
