"""Keys, a manifest, a folder: what examples are made of."""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from protocol.identity import PeerId, RunId
from protocol.trust.keys import Identity
from protocol.trust.membership_card import Authority, Card, Signer, issue
from tests.golden.vectors import identity
from tests.reference.small_manifest import small_manifest

RUN = RunId("ab" * 32)
OPERATOR, GATEWAY, AUTHOR, HOLDER = (identity(f"{number:02x}" * 32) for number in (1, 2, 3, 4))
AUTHORITY = Authority(RUN, OPERATOR.peer_id)
MANIFEST = small_manifest()
TWO_BITS = small_manifest(outer={"values": "2bit"})
PEER = PeerId("QmPeer")


def folder() -> Path:
    """One for all readers of files of this process."""
    return _folder_of(os.getpid())


@functools.cache
def _folder_of(process: int) -> Path:
    path = Path(tempfile.mkdtemp(prefix="hetpeer-fuzz-"))
    atexit.register(lambda: shutil.rmtree(path, ignore_errors=True) if os.getpid() == process else None)
    return path


def from_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """A reader of the file called `name`."""

    def read_bytes(data: bytes) -> object:
        path = folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)
        return read(path)

    return read_bytes


def sealed(who: Identity, kind: str, body: bytes) -> bytes:
    """Any body at all, rightly signed: what stands behind a signature is no more trusted than its signer."""
    said = kind.encode() + b"\0" + body
    return who.sign(said) + who.public + said


def card(own: Identity, role: str = "volunteer", stage: int = 0) -> bytes:
    """The operator's word for a peer."""
    return issue(OPERATOR, RUN, Card(own.peer_id, role, stage, 0))


def signer(own: Identity) -> Signer:
    """A volunteer of stage 0."""
    return Signer(own, AUTHORITY, card(own))
