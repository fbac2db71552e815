"""A peer's certificate is renewed long before it ends: channels that are open stay, new ones show the new one."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from peer.telemetry.events import CertificateRenewed, Listener, Progress
from protocol.errors import HetpeerError
from protocol.net.channels import Credentials

RENEWED_AFTER = 2 / 3
"""Of a certificate's life. The rest is for a bootstrap node that is away."""

LEAST_PAUSE_SECONDS = 1.0

MOST_PAUSE_SECONDS = 600.0

Renew = Callable[[], Awaitable[bytes]]
"""A new certificate; raises HetpeerError if there is none now."""


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
        pause = max(LEAST_PAUSE_SECONDS, (ends - clock()) / 16)
        while True:
            try:
                credentials.chain = await renew()
                break
            except HetpeerError as error:
                left = ends - clock()
                if left > 0:  # the nearer the end, the more often
                    pause = min(pause, max(LEAST_PAUSE_SECONDS, left / 4))
                said = f"{_state(left)}, and cannot be renewed: {error}; trying again in {pause:.0f} s"
                emit(Progress(said))
                await sleep(pause * random.uniform(0.75, 1.25))
                pause = min(MOST_PAUSE_SECONDS, 1.5 * pause)
        emit(CertificateRenewed(credentials.ends))
        if credentials.ends <= clock():
            emit(Progress("this peer's new certificate has ended by this machine's clock, which must be wrong"))
            await sleep(MOST_PAUSE_SECONDS)


def _state(left: float) -> str:
    if left > 0:
        return f"this peer's certificate ends in {f'{left / 60:.0f} minutes' if left >= 120 else f'{left:.0f} s'}"
    return "this peer's certificate has ended: nobody new talks to it until it is renewed"
