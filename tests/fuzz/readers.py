"""Every reader of bytes or text that may be a stranger's, by name. One that is added to hetpeer is added here."""

from tests.fuzz.disk import DISK
from tests.fuzz.reader import Reader
from tests.fuzz.typed import TYPED
from tests.fuzz.wire import WIRE

READERS: dict[str, Reader] = {reader.name: reader for reader in (*WIRE, *DISK, *TYPED)}

assert len(READERS) == len(WIRE) + len(DISK) + len(TYPED), "two readers of one name"
