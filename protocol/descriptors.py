"""The limit of files and sockets that this process may have open, and the part of it that is kept in reserve."""

import sys

from protocol.limits import DESCRIPTORS_RESERVED

UNLIMITED = 2**20
"""The number of descriptors that counts as enough where the system sets no limit."""


def raise_limit() -> int:
    """Raise the number of descriptors that this process may have as far as it may by itself. Returns the number."""
    if sys.platform == "win32":
        return UNLIMITED
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS says "unlimited" and means fewer
            return soft
    return descriptor_limit()


def descriptor_limit() -> int:
    """The number of descriptors that this process may have. Each new one has the smallest number that is free."""
    if sys.platform == "win32":
        return UNLIMITED
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def reserved() -> int:
    """The number of descriptors that no connection from outside takes: they are for files, for the calls that this
    process makes, and for its children. Half of all at most."""
    return min(DESCRIPTORS_RESERVED, descriptor_limit() // 2)


def for_connections() -> int:
    """The number of descriptors that connections from outside may take, of all ports together."""
    return descriptor_limit() - reserved()


def is_reserved(descriptor: int) -> bool:
    """Whether a connection that was accepted as `descriptor` takes one of the reserve: all smaller ones are in use."""
    return descriptor >= for_connections()
