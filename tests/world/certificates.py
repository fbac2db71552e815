"""What gRPC is given of certificates in the simulated world, and what makes it refuse a connection.

The certificates are the product's own, and are checked: a connection stands if each side's is of the root that the
other trusts, has not ended, and names who is meant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature


@dataclass(frozen=True, slots=True)
class Calling:
    """`grpc.ssl_channel_credentials`."""

    root: bytes | None = None
    key: bytes | None = None
    chain: bytes | None = None


@dataclass(frozen=True, slots=True)
class Shown:
    """`grpc.ssl_server_certificate_configuration`."""

    pairs: Any
    root: bytes | None = None


@dataclass(slots=True)
class Serving:
    """`grpc.ssl_server_credentials` and `grpc.dynamic_ssl_server_credentials`."""

    shown: Shown
    newest: Callable[[], Shown | None] = lambda: None
    wants_certificate: bool = False

    def chain(self) -> bytes:
        self.shown = self.newest() or self.shown
        return bytes(self.shown.pairs[0][1])


def serving(pairs: Any, root: bytes | None = None, require_client_auth: bool = False) -> Serving:
    return Serving(Shown(pairs, root), wants_certificate=require_client_auth)


def dynamic(initial: Shown, newest: Callable[[], Shown | None], require_client_authentication: bool = False) -> Serving:
    return Serving(initial, newest, require_client_authentication)


class Verifier:
    """Checks certificates against roots; what was found once is known."""

    def __init__(self) -> None:
        self.known: dict[tuple[bytes, bytes], tuple[str, float, str]] = {}

    def objection(self, chain: bytes, root: bytes, now: float) -> str:
        """Why a chain is not believed; empty: it is."""
        reason, ends, _ = self._read(chain, root)
        return reason or ("certificate has expired" if ends < now else "")

    def name(self, chain: bytes, root: bytes) -> str:
        """Whom a chain names."""
        return self._read(chain, root)[2]

    def _read(self, chain: bytes, root: bytes) -> tuple[str, float, str]:
        key = (chain, root)
        if key not in self.known:
            shown, trusted = x509.load_pem_x509_certificates(chain), x509.load_pem_x509_certificates(root)
            links = [*shown, trusted[0]] if shown[-1] != trusted[0] else shown
            reason = ""
            try:
                for one, other in pairwise(links):
                    one.verify_directly_issued_by(other)
            except (ValueError, TypeError, InvalidSignature):
                reason = "CERTIFICATE_VERIFY_FAILED"
            ends = min(each.not_valid_after_utc.timestamp() for each in links[:-1] or links)
            names = shown[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            self.known[key] = reason, ends, names.get_values_for_type(x509.DNSName)[0]
        return self.known[key]
