"""The duties of a peer that keep its place in a run: it renews its certificate, stands its trial, and gives up a slot
that another has as well.

A certificate is renewed long before it ends: channels that are open stay, and new ones show the new certificate.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

from peer.network.admission import Admitted
from peer.network.discovery import Discovery
from protocol.clock import unix_time
from protocol.errors import HetpeerError
from protocol.events.activity import CertificateRenewed, Notice, Progress
from protocol.events.event import Listener
from protocol.net.allowances import pause_after
from protocol.net.channels import Credentials
from protocol.trust.records import PeerRecord
from protocol.wording import lasting, tail

RENEWED_AFTER = 2 / 3
"""The share of a certificate's life after which it is renewed. The rest is for a bootstrap node that is away."""

LEAST_PAUSE_SECONDS = 1.0

MOST_PAUSE_SECONDS = 600.0

SLOT_PAUSE_SECONDS = 30.0
"""The seconds between two requests of a peer for another slot."""

Renew = Callable[[], Awaitable[bytes]]
"""A function that asks for a new certificate; raises HetpeerError if there is none now."""

Ask = Callable[[], Awaitable[Admitted]]
"""A function that asks a node for this peer's place; raises HetpeerError if there is none now."""


async def keep_renewing(
    credentials: Credentials,
    renew: Renew,
    emit: Listener,
    clock: Callable[[], float] = unix_time,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Renew the certificate for as long as this peer lives; if no bootstrap node answers, say so and go on trying."""
    ended = 0
    while True:
        ends = credentials.ends
        seconds_left = ends - clock()
        if seconds_left > 0:  # one that has ended is renewed at once
            await sleep(max(LEAST_PAUSE_SECONDS, seconds_left * RENEWED_AFTER * random.uniform(0.9, 1.0)))
        first, tries, late = max(LEAST_PAUSE_SECONDS, (ends - clock()) / 16), 0, 0
        while True:
            try:
                credentials.chain = await renew()
                break
            except HetpeerError as error:
                seconds_left, tries = ends - clock(), tries + 1
                if seconds_left > 0:  # the nearer the end, the more often
                    pause = min(
                        pause_after(tries, first, MOST_PAUSE_SECONDS), max(LEAST_PAUSE_SECONDS, seconds_left / 4)
                    )
                    state = f"this peer's certificate ends in {lasting(seconds_left)}"
                else:
                    late += 1
                    pause = pause_after(late, LEAST_PAUSE_SECONDS, MOST_PAUSE_SECONDS)
                    state = "this peer's certificate has ended: nobody new talks to it until it is renewed"
                emit(Notice(f"{state}, and cannot be renewed: {error}; trying again in {pause:.0f} s"))
                await sleep(pause * random.uniform(0.75, 1.25))
        emit(CertificateRenewed(credentials.ends))
        ended = ended + 1 if credentials.ends <= clock() else 0
        if ended > 1:  # the first may have come while this machine slept
            emit(Notice("this peer's new certificate has ended by this machine's clock, which must be wrong"))
        if ended:
            await sleep(pause_after(ended, LEAST_PAUSE_SECONDS, MOST_PAUSE_SECONDS))


async def stand_trial(discovery: Discovery, ask: Ask, emit: Listener) -> None:
    """While this peer is on trial, `ask` for its next card after each round; with a card that lets its contributions
    count the trial is over. A node that does not answer is asked again after the next round."""
    if not discovery.record.on_trial:
        return
    emit(Notice("on trial: the run's operator looks at a first contribution before any of them counts"))
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
            discovery.update_record(on_trial=False, slot=admitted.card.slot)
    await discovery.publish()
    emit(Notice("the trial is over: what this peer contributes counts from now on"))


async def keep_a_slot(discovery: Discovery, ask: Ask, emit: Listener) -> None:
    """See to it, for as long as this peer lives, that no other replica reads under its slot.

    Two nodes that let peers in within the same second know nothing of each other's, and may give both one slot. Of two
    that have the same, the one with the lower peer id keeps it, and the other asks for a new one.
    """
    while True:
        while (other := has_first_claim(discovery)) is None:
            await discovery.news.wait()
        had = discovery.record.slot
        try:
            admitted = await ask()
        except HetpeerError as error:
            emit(Progress(f"peer {tail(other.peer_id)} reads the same text, and there is no other slot yet: {error}"))
        else:
            discovery.signer.card = admitted.signed_card  # and, in the same breath, the record that goes with it
            await discovery.publish(on_trial=admitted.card.on_trial, slot=admitted.card.slot)
            if admitted.card.slot != had:
                emit(
                    Progress(
                        f"peer {tail(other.peer_id)} had slot {had} as well; this peer has {admitted.card.slot} now"
                    )
                )
                continue
        await asyncio.sleep(SLOT_PAUSE_SECONDS)


def has_first_claim(discovery: Discovery) -> PeerRecord | None:
    """The peer that is alive, has this one's slot at the same work, and a lower peer id; None: there is none."""
    me = discovery.record
    if me.role == "observer":
        return None
    same = (peer for peer in discovery.others() if (peer.role, peer.stage, peer.slot) == (me.role, me.stage, me.slot))
    return next((peer for peer in same if peer.peer_id < me.peer_id), None)
