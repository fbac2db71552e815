"""One outer round of four peers, beside one round of hivemind's averager on the same tensors.

Ours: from Δ in float32 on each peer to the new θ on every peer. Error feedback, top-k (32 of 4096), two-bit values,
encoding, the swarm's own exchange over gRPC, decoding, and the outer step over all four contributions. The digests of
all peers must be equal. The averager: `DecentralizedAverager` with fp16 compression, from float32 tensors to their
average on every peer. Both begin connected: its search for a group is left out of its time, and our streams that tell
of contributions are open. A round takes as long as its slowest peer. The median of the rounds counts, after three that
warm up.

Every peer is a process. With root, all sit in a network namespace of their own, so that the kernel counts their bytes
and nobody else's; then again on links of 100 Mb/s each way (`tc tbf`), each in its own namespace. Without root there
are no links, and bytes are those of the machine's loopback, whoever sends them.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # before any import of grpc

from group.processes import ROOT, Started, begin
from options.small import sized_arguments
from shaped.places import Place, links, loopback

from protocol.trust.keys import load_or_create

PEERS = 4
WARM_UP = 3
"""Rounds in which kernels are loaded and the allocators come to keep their pages."""
LAST_LINES, LAST_SECONDS = 20, 10.0
"""Lines that a peer said before it ended, and the time it has for that."""
END_SECONDS = 30.0
MODEL = {"layers": 3, "d": 512, "heads": 8, "kv_heads": 8, "ffn": 1472, "context": 8, "vocabulary": 258}
"""One stage of it has 10.06 million parameters."""
MATCHMAKING_SECONDS, REQUEST_SECONDS, STEP_SECONDS = 10.0, 3.0, 120.0
"""The averager's: until a search begins anew, until a leader counts as gone, and until a step has failed. A group of
fewer than all peers goes on searching, where by default two are enough: their round is not the one that is measured."""
OUTER = {"chunk_side": 64, "top_k": 32, "values": "2bit", "beta": 0.95, "learning_rate": 1.0, "aggregate": "all"}
"""The paper's outer settings, with two-bit values."""


@dataclass(frozen=True, slots=True)
class Result:
    """One side on one network: seconds of a round, and bytes that all peers' network interfaces sent in it."""

    seconds: float
    bytes: int


# One peer: a process that reads a line, does a thing, and says a line.


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def hear() -> Any:
    return json.loads(sys.stdin.readline())


def wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))


async def our_peer(number: int, address: str, rounds: int) -> None:
    """A peer with the swarm's outer state and exchange: signed entries, contributions on disk, reconciliation."""
    import grpc
    import torch

    from peer.network.attested import Attested
    from peer.network.bans import Bans
    from peer.network.blob_fetcher import BlobFetcher
    from peer.network.contacts import Contacts
    from peer.network.discovery import Discovery
    from peer.network.gossip import Reconciler
    from peer.network.gossip_service import ReconciliationService
    from peer.network.intake import Intake
    from peer.optim.grid import grid_digest
    from peer.optim.outer import OuterState
    from peer.store.served import ContributionStore
    from peer.torch_thread import TorchThread
    from protocol.codec.contribution import Contribution, decode
    from protocol.identity import PeerId, RunId, stage_part
    from protocol.layout import part_layout
    from protocol.manifest import check_manifest
    from protocol.net.blobs import BlobService
    from protocol.net.channels import Credentials, listen, options
    from protocol.net.guard import Guard
    from protocol.outer.ledger import Entry, Ledger
    from protocol.outer.window import Window
    from protocol.schemas import blobs_pb2_grpc, reconciliation_pb2_grpc
    from protocol.trust import certificates
    from protocol.trust.keys import load_or_create
    from protocol.trust.membership_card import Authority, Card, Signer, issue
    from protocol.trust.records import PeerRecord

    torch_thread = TorchThread(1)
    replicas = {"stages": 1, "groups": 0, "datacenters": PEERS, "compression": 1}
    manifest = check_manifest({"model": MODEL, "outer": OUTER | {"rounds": rounds}, "replicas": replicas})
    part, run = stage_part(0), RunId("00" * 32)
    layout = part_layout(manifest, part)
    genesis = {name: torch.zeros(shape, dtype=torch.int32) for name, shape in layout.items()}
    state = OuterState.begin(manifest, part, genesis, author=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        operator = load_or_create(Path(os.environ["HETPEER_BENCHMARK"]))
        identity = load_or_create(folder)
        card = issue(operator, run, Card(identity.peer_id, "datacenter", 0, 0))
        shown = certificates.certify(operator, identity.key.public_key(), time.time(), 86400.0)
        credentials = Credentials(certificates.private_key(identity), shown, certificates.authority(operator))
        bans = Bans(lambda event: None)
        server = grpc.aio.server(options=options(manifest), interceptors=[Guard(bans.objection)])
        port = listen(server, f"{address}:0", credentials.serving())

        def record(peer: str, where: str) -> PeerRecord:
            return PeerRecord(peer_id=PeerId(peer), address=where, role="datacenter", stage=0, slot=0, replica=peer)

        contacts, contribution_store = Contacts(manifest, credentials, bans.objection), ContributionStore(folder)
        ledger = Ledger(part, identity.peer_id, Window(manifest.outer.grace, manifest.outer.liars))
        signer = Signer(identity, Authority(run, operator.peer_id), card)
        discovery = Discovery(None, signer, manifest, record(identity.peer_id, f"{address}:{port}"))
        fetcher = BlobFetcher(contacts.fetch, bans)
        intake = Intake(manifest, signer, fetcher, contribution_store, {part: ledger}, discovery.news)
        attested = Attested(signer, bans, folder, intake.has_revoked)
        reconciler = Reconciler(manifest, discovery, contacts, intake, bans, attested)
        decoded: dict[str, Contribution] = {}

        async def accept(blob: bytes, entry: Entry) -> None:
            decoded[entry.sha256] = await torch_thread.run(decode, blob, manifest)

        intake.begin(accept)
        blobs_pb2_grpc.add_BlobsServicer_to_server(BlobService(manifest, contribution_store.lookup), server)
        reconciliation_pb2_grpc.add_ReconciliationServicer_to_server(ReconciliationService(reconciler), server)
        await server.start()
        say(address=[identity.peer_id, f"{address}:{port}"])
        for each in await asyncio.to_thread(hear):
            discovery.meet(record(*each), in_person=True)
        for other in discovery.others():
            await reconciler.compare(other)
        generator = torch.Generator().manual_seed(number)
        for round in range(1, rounds + 1):
            moved = {name: torch.randn(shape, generator=generator) * 1e-3 for name, shape in layout.items()}
            discovery.update_record(round=round - 1)
            ledger.advance(round)
            say(ready=True)
            moment = await asyncio.to_thread(hear)
            await asyncio.sleep(max(0.0, moment - time.monotonic()))
            blob, sent = await torch_thread.run(state.contribute, run, round, identity.peer_id, 1, moved)
            await reconciler.publish(part, round, blob)
            decoded[ledger.chosen(round)[identity.peer_id]] = sent

            def complete(round: int = round) -> bool:
                return len(ledger.chosen(round)) == PEERS

            await discovery.news.until(complete)
            chosen = [decoded[sha256] for sha256 in ledger.chosen(round).values()]
            await torch_thread.run(state.replace, [], chosen)
            end = time.monotonic()
            decoded.clear()
            say(end=end, state=grid_digest(state.grid), contribution_bytes=len(blob))
        await asyncio.to_thread(hear)
        await contacts.close()
        await server.stop(None)
        torch_thread.stop()


def averager_peer(number: int, address: str, rounds: int) -> None:
    """A peer of hivemind's averager."""
    import hivemind
    import torch
    from hivemind.averaging.control import AveragingStage
    from hivemind.compression import Float16Compression

    from protocol.identity import stage_part
    from protocol.layout import part_layout
    from protocol.manifest import check_manifest

    torch.set_num_threads(1)
    tempfile.gettempdir()  # its lock is held when this is first asked; a fork at that moment would wait for it for ever
    layout = part_layout(check_manifest({"model": MODEL, "replicas": {"stages": 1, "compression": 1}}), stage_part(0))
    first = hear() if number else []
    dht = hivemind.DHT(
        start=True, host_maddrs=[f"/ip4/{address}/tcp/0"], initial_peers=first, use_auto_relay=False, use_relay=False
    )
    say(address=[str(each) for each in dht.get_visible_maddrs()])
    generator = torch.Generator().manual_seed(number)
    averager = hivemind.DecentralizedAverager(
        [torch.zeros(shape) for shape in layout.values()],
        dht,
        start=True,
        prefix="round",
        target_group_size=PEERS,
        min_group_size=PEERS,
        min_matchmaking_time=MATCHMAKING_SECONDS,
        request_timeout=REQUEST_SECONDS,
        compression=Float16Compression(),
    )
    hear()
    for _ in range(rounds):
        with averager.get_tensors() as tensors:
            for tensor in tensors:
                tensor.copy_(torch.randn(tensor.shape, generator=generator) * 1e-3)
        step = averager.step(wait=False, require_trigger=True, timeout=STEP_SECONDS, gather=None)
        while step.stage != AveragingStage.AWAITING_TRIGGER and not step.done():  # done: it has failed
            time.sleep(0.01)
        say(ready=True)
        wait_until(hear())
        step.allow_allreduce()
        group = step.result(STEP_SECONDS)
        end = time.monotonic()
        assert len(group or ()) == PEERS, group
        with averager.get_tensors() as tensors:
            say(end=end, state=None, mean=float(sum(tensor.double().abs().sum() for tensor in tensors)))
    hear()
    averager.shutdown()
    dht.shutdown()


# The measurement


@dataclass(slots=True)
class Peer:
    """The process of one peer of a side. What it says of itself lies in a file until it ends before its time."""

    side: str
    process: Started
    said: IO[str]

    def tell(self, words: object) -> None:
        """Let it hear a line."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(words) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.ended() from None

    def answer(self) -> Any:
        """Its next line.

        Raises:
            SystemExit: there is none; with its exit code, and what it said last.
        """
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)
        raise self.ended()

    def ended(self) -> SystemExit:
        """Its end before its time, in words."""
        try:
            code: int | str = self.process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            code = "none yet"
        self.said.seek(0)
        last = "".join(self.said.readlines()[-LAST_LINES:])
        return SystemExit(f"a peer of {self.side} ended before its time, exit code {code}; it said:\n{last}")


@contextlib.contextmanager
def started(side: str, places: list[Place], rounds: int) -> Iterator[list[Peer]]:
    """The peers of one side, of which each knows all addresses, for as long as the block lasts."""
    with contextlib.ExitStack() as stack:
        operator = stack.enter_context(tempfile.TemporaryDirectory())
        load_or_create(Path(operator))
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HIVEMIND_LOGLEVEL": "ERROR"}
        environment["HETPEER_BENCHMARK"] = operator
        peers: list[Peer] = []
        for number, place in enumerate(places):
            words = [*place.within(), sys.executable, __file__, "--peer", side, str(number), place.address, str(rounds)]
            said = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = begin(words, said, environment)
            stack.callback(process.wait)
            stack.callback(process.kill)
            peers.append(Peer(side, process, said))
        if side == "averager":  # the others find each other by the first
            first = peers[0].answer()["address"]
            for peer in peers[1:]:
                peer.tell(first)
        addresses = [first] if side == "averager" else []
        addresses += [peer.answer()["address"] for peer in peers[len(addresses) :]]
        for peer in peers:
            peer.tell(addresses)
        yield peers


def measure(side: str, places: list[Place], warm_up: int, rounds: int) -> Result:
    """Run one side on one network: median seconds and bytes of the rounds after the warm-up."""
    interfaces = list({(place.namespace, place.interface): place for place in places}.values())
    seconds, sent = [], []
    with started(side, places, warm_up + rounds) as peers:
        for _ in range(warm_up + rounds):
            for peer in peers:
                peer.answer()
            time.sleep(1)  # what is still on the wire from before is not this round's
            before = sum(place.bytes_sent() for place in interfaces)
            start = time.monotonic() + 0.2
            for peer in peers:
                peer.tell(start)
            answers = [peer.answer() for peer in peers]
            sent.append(sum(place.bytes_sent() for place in interfaces) - before)
            seconds.append(max(each["end"] for each in answers) - start)
            assert len({each["state"] for each in answers}) == 1, "the peers' digests differ"
        for peer in peers:
            peer.tell("end")
            peer.process.wait(END_SECONDS)
    return Result(statistics.median(seconds[warm_up:]), int(statistics.median(sent[warm_up:])))


def main() -> None:
    parser = argparse.ArgumentParser(description="One outer round of four peers, beside hivemind's averager.")
    parser.add_argument("--rounds", type=int, default=9, help="the median counts")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, metavar="ROUNDS", help="before those that count")
    parser.add_argument("--no-links", action="store_true", help="on loopback alone")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--peer", nargs=4, metavar=("SIDE", "NUMBER", "ADDRESS", "ROUNDS"), help=argparse.SUPPRESS)
    options = sized_arguments(parser, rounds=1, warm_up=0, no_links=True)
    if options.peer:
        side, number, address, rounds = options.peer
        if side == "ours":
            asyncio.run(our_peer(int(number), address, int(rounds)))
        else:
            averager_peer(int(number), address, int(rounds))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also then take the namespaces down
    results: dict[str, dict[str, Result]] = {}
    for network in (loopback,) if options.no_links else (loopback, links):
        try:
            with network(PEERS) as places:
                results[network.__name__] = {
                    side: measure(side, places, options.warm_up, options.rounds) for side in ("ours", "averager")
                }
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{network.__name__}: not here ({error}); root and tc's tbf are needed", file=sys.stderr)
    report(results, options.json)


def report(results: dict[str, dict[str, Result]], as_json: bool) -> None:
    """Ratios are the averager's by ours: how many times quicker, and fewer bytes."""
    near, far = results["loopback"], results.get("links")
    ratios = {
        "ratio_time": near["averager"].seconds / near["ours"].seconds,
        "ratio_bytes": near["averager"].bytes / near["ours"].bytes,
    }
    if far:
        ratios["ratio_time_100mbps"] = far["averager"].seconds / far["ours"].seconds
        ratios["ratio_bytes_100mbps"] = far["averager"].bytes / far["ours"].bytes
    if as_json:
        sides = {net: {side: asdict(each) for side, each in of.items()} for net, of in results.items()}
        print(json.dumps(ratios | {"results": sides}))
        return
    print(f"{PEERS} peers, 10.06 million parameters, {OUTER['top_k']} of {64**2} values kept, two bits each")
    print(f"{'network':10} {'':10} {'seconds':>8} {'megabytes sent by all':>22}")
    for net, of in results.items():
        for side, each in of.items():
            print(f"{net:10} {side:10} {each.seconds:8.3f} {each.bytes / 1e6:22.3f}")
    print(", ".join(f"{name} {ratio:.1f}" for name, ratio in ratios.items()))


if __name__ == "__main__":
    main()
