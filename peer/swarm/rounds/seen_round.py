"""One outer round as a peer saw it: deadlines follow from it."""

import time
from dataclasses import dataclass, field

from protocol.identity import Part, PeerId


@dataclass(slots=True)
class SeenRound:
    """One round as this peer saw it: when it began here, and when each contribution came."""

    started: float = field(default_factory=time.monotonic)
    arrivals: dict[Part, dict[PeerId, float]] = field(default_factory=dict)
    passed: float | None = None
    """When this peer, still waiting, saw that the others had gone on."""

    def arrived(self, part: Part) -> list[float]:
        """When the contributions to a part came."""
        return list(self.arrivals.get(part, {}).values())
