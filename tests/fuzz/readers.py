"""Every reader of bytes or text that may be a stranger's, by name. One that is added to hetpeer is added here."""

from tests.fuzz.certified import CERTIFICATES
from tests.fuzz.checkpoints import CHECKPOINTS
from tests.fuzz.disk import DISK
from tests.fuzz.machines import MACHINES
from tests.fuzz.operators import OPERATORS
from tests.fuzz.reader import Reader
from tests.fuzz.typed import TYPED
from tests.fuzz.wire import WIRE

ALL = (*WIRE, *CERTIFICATES, *CHECKPOINTS, *DISK, *MACHINES, *OPERATORS, *TYPED)
READERS: dict[str, Reader] = {reader.name: reader for reader in ALL}

assert len(READERS) == len(ALL), "two readers of one name"
