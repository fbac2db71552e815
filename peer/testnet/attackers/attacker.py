"""An attacking peer, for `hetpeer testnet --chaos attacker:KIND`: the ordinary daemon with one thing replaced.

    python -m peer.testnet.attackers.attacker KIND TICKET --dir FOLDER

It is a peer of the run like all others, admitted and certified: what it does wrong is in
`peer/testnet/attackers/attacks.py`.
"""

import sys
from functools import partial
from pathlib import Path

from peer import daemon
from peer.process import Terminal, print_json, run_command, told
from peer.settings import PeerSettings
from peer.store.home import locked
from peer.testnet.attackers.attacks import ATTACKS
from peer.testnet.faults import CONTRIBUTING
from protocol.trust.ticket import find


def attack(kind: str, ticket: str, folder: Path) -> int:
    """Join as a volunteer of stage 1, or as a datacenter, and attack until the run is over; the exit code."""
    ATTACKS[kind]()
    terminal = Terminal(print_json, json=True, until_stdin_closes=True)

    def serve() -> int:
        with locked(folder) as directory:
            settings = PeerSettings(
                ticket=find(ticket, directory),
                role="datacenter" if kind in CONTRIBUTING else "volunteer",
                directory=directory,
                stage=None if kind in CONTRIBUTING else 1,
                device="cpu",
            )
            return run_command(partial(daemon.run_until, settings=settings, emit=terminal.emit), terminal)

    return told(terminal.emit, serve)


if __name__ == "__main__":
    sys.exit(attack(sys.argv[1], sys.argv[2], Path(sys.argv[sys.argv.index("--dir") + 1])))
