"""`hetpeer testnet`: a whole swarm on this machine."""

from peer.process import Terminal, run, told
from peer.telemetry.report import COMPLETED, Report
from peer.telemetry.terminal import TestnetScreen
from peer.testnet import chaos
from peer.testnet.options import TestnetOptions, check_manifest
from peer.testnet.run import run as run_swarm


def testnet(options: TestnetOptions, terminal: Terminal) -> int:
    """From the first process to the verdict; the exit code, 0 only for a run that was completed."""

    def work() -> int:
        report = Report(check_manifest(options))
        faults = chaos.parse(options.chaos) if options.chaos is not None else ()
        chaos.check(faults, options)
        code = run(lambda stop: run_swarm(options, faults, TestnetScreen(report), stop), terminal)
        return code or int(report.verdict() != COMPLETED)

    return told(terminal.emit, work)
