"""What holding a run's whole model takes of a machine that computes nothing with it. Pure, and without torch: the
operator's node asks before it loads any."""

from protocol.layout import parameter_count
from protocol.manifest import Manifest

PROCESS_BYTES = 500 * 2**20
"""Python, torch, hivemind and gRPC."""

HELD_BYTES = 12
"""A value of the model: its grid, and passing copies while a state or a contribution is taken over."""


def held_bytes(manifest: Manifest) -> int:
    """Memory that a process takes which holds the model, in bytes: an upper estimate."""
    return HELD_BYTES * parameter_count(manifest) + PROCESS_BYTES
