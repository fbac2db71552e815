"""A peer's certificate is renewed long before it ends: channels that are open stay, new ones show the new one."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from peer.events import CertificateRenewed, Listener, Progress
from protocol.channels import Credentials
from protocol.errors import HetpeerError

RENEWED_AFTER = 2 / 3
"""Of a certificate's life. The rest is for a bootstrap node that is away."""

MOST_PAUSE_SECONDS = 600.0

Renew = Callable[[], Awaitable[bytes]]
"""A new certificate; raises HetpeerError if there is none now."""


async def keep_renewing(credentials: Credentials, renew: Renew, emit: Listener) -> None:
    """Renew the certificate for as long as this peer lives; if no bootstrap node answers, say so and go on trying."""
    while True:
        begun, ends = time.time(), credentials.ends
        await asyncio.sleep(max(0.0, (ends - begun) * RENEWED_AFTER * random.uniform(0.9, 1.0)))
        pause = max(1.0, (ends - time.time()) / 16)
        while credentials.ends == ends:
            try:
                credentials.chain = await renew()
                emit(CertificateRenewed(credentials.ends))
            except HetpeerError as error:
                emit(Progress(f"{_state(ends)}, and cannot be renewed: {error}; trying again in {pause:.0f} s"))
                await asyncio.sleep(pause * random.uniform(0.75, 1.25))
                pause = min(MOST_PAUSE_SECONDS, 1.5 * pause)


def _state(ends: float) -> str:
    left = ends - time.time()
    if left > 0:
        return f"this peer's certificate ends in {left / 60:.0f} minutes"
    return "this peer's certificate has ended: nobody new talks to it until it is renewed"
