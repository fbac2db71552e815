"""A bounded cache of what was found about bytes that others sent, by their SHA-256.

The bytes themselves are not kept: an entry takes as much memory whether they are one kilobyte or twenty-four, so a
bound on the number of entries is one on memory.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(slots=True)
class DigestCache(Generic[Value]):
    """The last `most` findings; of one more, the one unused for longest goes. Values must be small. Several threads may
    use it."""

    most: int
    found: OrderedDict[bytes, Value] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, data: bytes) -> Value | None:
        """Return what was found about these bytes; None: nothing is known."""
        digest = sha256(data).digest()
        with self.lock:
            value = self.found.get(digest)
            if value is not None:
                self.found.move_to_end(digest)
            return value

    def put(self, data: bytes, value: Value) -> None:
        """Remember what was found about these bytes."""
        with self.lock:
            self.found[sha256(data).digest()] = value
            if len(self.found) > self.most:
                self.found.popitem(last=False)
