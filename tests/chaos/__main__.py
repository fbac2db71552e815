"""`python -m tests.chaos`: `hetpeer testnet` with more faults: of links, at random, and attackers."""

import os
import sys

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # gRPC's fork handlers crash libp2p's daemon at its start
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # absl writes to stderr past Python's logging

import typer

from peer.cli.options import takes, terminal
from peer.cli.testnet import CHAOS_NOTATION, TestnetArguments

EXAMPLES = (
    "Examples:\n\n  python -m tests.chaos --chaos 'partition:group=0|group=1+datacenter=0@rounds=2-3'\n\n"
    "  python -m tests.chaos --chaos slow:group=1/stage=0=1mbit@round=2+10s,leave:bootstrap@round=3\n\n"
    "  python -m tests.chaos --rounds 12 --chaos random:7:6:kill+pause\n\n"
    "  python -m tests.chaos --chaos attacker:garbage\n\n"
    "  python -m tests.chaos --rounds 12 --chaos crowd:all*10@round=2+30s\n\n"
    f"{CHAOS_NOTATION}, partition:A|B@rounds=F-L (A and B are WHOM joined by +, or `half` instead of both), "
    "slow:WHOM=RATE, random:SEED:RATE[:KINDS] (RATE faults a minute), attacker:KIND (one hostile peer more; KIND is "
    "garbage, shapes, lengths, loris, spam, stale, equivocation, scaled, copied or flipped), crowd:KIND*N (N hostile "
    "names for a while; KIND is clock, spam, slow, equivocation, flood, replay, slots, gateway, door, dht, dashboard "
    "or all). partition and slow need root, and iproute2 and nftables."
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog=EXAMPLES)
@takes(TestnetArguments)
def chaos(arguments: TestnetArguments) -> None:
    """Break a testnet on this machine: its processes, its links, by attackers. Otherwise it is `hetpeer testnet`."""
    from peer.process import exit_code_of, run_command
    from peer.telemetry.run_report import COMPLETED, Report
    from peer.telemetry.terminal import TestnetScreen
    from peer.testnet.chaos import parse_chaos
    from peer.testnet.testnet_options import check_testnet_manifest
    from tests.chaos.notation import ALL_NOTATIONS, check_items
    from tests.chaos.run import run_chaos

    shown = terminal()

    def work() -> int:
        options = arguments.options()
        report = Report(check_testnet_manifest(options))
        items = parse_chaos(arguments.chaos, ALL_NOTATIONS) if arguments.chaos is not None else ()
        check_items(items, options)
        code = run_command(lambda stop: run_chaos(options, items, TestnetScreen(report), stop), shown)
        return code or int(report.verdict() != COMPLETED)

    sys.exit(exit_code_of(shown.emit, work))


if __name__ == "__main__":
    app()
