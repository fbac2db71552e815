"""`python -m peer.devices RANK FD`: a worker, whose end of the connection to the daemon is FD.

Ctrl-C and SIGTERM, which a terminal or a service manager sends to all processes of a peer, are the daemon's affair from
the first moment on: it ends the inner step, contributes, and ends its workers.
"""

import signal
import sys


def main() -> None:
    """Set the signals first, then import what is heavy."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    from peer.devices.device_worker import work

    work(int(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    main()
