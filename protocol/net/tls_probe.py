"""A look at who answers at an address: a TLS connection that shows and sends nothing, for the certificate it is shown.

gRPC can insist on a certificate, but not show one first; so whoever has to see a certificate before it decides, or only
measures how far away somebody is, opens a connection of its own.
"""

import asyncio
import ssl
import time
from dataclasses import dataclass

from protocol.addresses import split


@dataclass(frozen=True, slots=True)
class TlsProbe:
    """What answered: its certificate (DER; empty: it has shown none), the seconds until the connection stood, a round
    trip, and the seconds from there until TLS stood."""

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
    host, port = split(address)
    begun = time.perf_counter()
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
    return TlsProbe(certificate, connected - begun, shaken - connected)
