"""`hetpeer testnet`: a whole swarm on this machine."""

from peer.process import Terminal, run, told
from peer.report import Report
from peer.screen import TestnetScreen
from peer.testnet.options import TestnetOptions, check_manifest
from peer.testnet.run import run as run_swarm


def testnet(options: TestnetOptions, terminal: Terminal) -> int:
    """From the first process to the verdict; the exit code."""

    def work() -> int:
        screen = TestnetScreen(Report(check_manifest(options)))
        return run(lambda stop: run_swarm(options, screen, stop), terminal)

    return told(terminal.emit, work)
