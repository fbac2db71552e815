"""A look at who answers at an address: a TLS connection that shows and sends nothing, for the certificate it is shown.
And the choice of the address, of several that a peer names, at which its key answers.

gRPC can insist on a certificate, but not show one first; so whoever has to see a certificate before it decides, or only
measures how far away somebody is, opens a connection of its own.
"""

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from protocol.addresses import split_address
from protocol.errors import FormatError, UnreachableError
from protocol.identity import PeerId
from protocol.net.tasks import first_success
from protocol.trust.certificates import shown_by

STAGGER_SECONDS = 0.5
"""The time that an address of a peer or node has for itself before the next one is tried as well: longer than a round
trip around the world."""


@dataclass(frozen=True, slots=True)
class TlsProbe:
    """The answer to a probe: the certificate (DER; empty: none was shown), the seconds until the connection stood, a
    round trip, and the seconds from there until TLS stood."""

    certificate: bytes
    round_trip: float
    tls: float


def anybody() -> ssl.SSLContext:
    """TLS with whoever answers, of whatever certificate, showing none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


async def probe(address: str, seconds: float) -> TlsProbe:
    """Connect to host:port, shake hands, and hang up, all within so many seconds. That TLS stands proves that whoever
    answers has the key of its certificate.

    Raises:
        ssl.SSLError: what answers speaks no TLS.
        OSError: nobody answers in time, or who does hangs up.
        FormatError: `address` is none.
    """
    host, port = split_address(address)
    started = time.perf_counter()
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(host, port)
            try:
                connected = time.perf_counter()
                await writer.start_tls(anybody())
                shaken = time.perf_counter()
                certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
            finally:
                writer.transport.abort()
    except TimeoutError:
        raise TimeoutError("timed out") from None
    except ConnectionResetError as error:
        raise ConnectionResetError(str(error) or "it hangs up") from None
    return TlsProbe(certificate, connected - started, shaken - connected)


async def first_answering(peer: PeerId, addresses: Sequence[str], seconds: float) -> str:
    """Return the first of these addresses at which a peer's key answers, within so many seconds each. An earlier one
    has `STAGGER_SECONDS` before the next is tried.

    Raises:
        UnreachableError: it answers at none; the message is about the first.
    """

    async def attempt(address: str) -> str:
        try:
            shown = await probe(address, seconds)
            if shown_by(shown.certificate) == peer:
                return address
            raise UnreachableError(f"no answer from {address} (somebody else answers there)")
        except (ssl.SSLError, OSError, ValueError, FormatError) as error:
            raise UnreachableError(f"no answer from {address} ({error})") from None

    return await first_success(
        [partial(attempt, address) for address in addresses], STAGGER_SECONDS, (UnreachableError,)
    )
