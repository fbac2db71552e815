"""Strangers hold more silent connections than fit to every port of a run whose processes may have 1,024 files each.

How many steps are lost meanwhile, `benchmarks/connections.py` measures.
"""

from contextlib import ExitStack
from pathlib import Path

from peer.testnet.child import two_free_ports
from protocol.events.activity import Joined, RoundDone, Serving
from protocol.events.decisions import CaughtUp
from tests.reference.flood import flooded
from tests.reference.forks import with_files
from tests.reference.processes import RUN, TEXT, Peer, hetpeer

CONNECTIONS, SITES = 600, 200
"""To each port, more than it takes: one half from one address, the other from this many networks."""


def test_strangers_with_thousands_of_silent_connections_end_nobody_and_keep_no_newcomer_out(tmp_path: Path):
    (tmp_path / "run.toml").write_text(RUN.format(datacenters=0, sequences=2) + "steps = 6\n[outer]\nrounds = 500\n")
    (tmp_path / "text.txt").write_text(TEXT)
    door = two_free_ports()
    ports = [door, door + 1, door + 2]
    with ExitStack() as stack:

        def begin(name: str, *arguments: str) -> Peer:
            own = *arguments, "--dir", str(tmp_path / name)
            return stack.enter_context(Peer(*own, inside=with_files(1024)))

        node = begin("node", "bootstrap", str(tmp_path / "run.toml"), "--listen", f"127.0.0.1:{door}", "--data",
                     str(tmp_path / "text.txt"))  # fmt: skip
        ticket = node.wait_for(Serving).ticket
        computes = "--device", "cpu", "--threads", "1"
        peers = []
        for stage in (0, 1):
            ports.append(two_free_ports())
            listen = "--stage", str(stage), "--listen", f"127.0.0.1:{ports[-1]}"
            peers.append(begin(f"stage {stage}", "join", ticket, *listen, *computes))
        for peer in peers:
            peer.wait_for(RoundDone)
        with flooded(CONNECTIONS, SITES, ports) as held:
            assert held > CONNECTIONS * len(ports) * 0.9
            before = max(event.round for event in peers[0].said if isinstance(event, RoundDone))
            answered = hetpeer("status", ticket)
            assert answered.returncode == 0, answered.stdout + answered.stderr
            newcomer = begin("newcomer", "join", ticket, "--stage", "1", *computes)
            newcomer.wait_for(Joined)
            newcomer.wait_for(CaughtUp)  # which the others' ports have given it
            for peer in peers:
                peer.wait_for(RoundDone, lambda event: event.round > before + 3)
            assert [each.process.poll() for each in (node, *peers, newcomer)] == [None] * 4
        for each in (newcomer, *peers):
            each.leave()
