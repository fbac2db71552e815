"""A crowd of hostile names in one process, for `python -m tests.chaos --chaos crowd:KIND*N@WHEN+Ns`.

    python -m tests.chaos.attackers.hostile_process KIND N SECONDS TICKET TARGETS --dir FOLDER

Each name is admitted at the door like everybody else, and from then on does one thing, in bounded loops, for so many
seconds; then the process ends. `TARGETS` is a file of JSON with the honest peers. What became of the calls is in
`outcomes.json` in the folder.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from peer.network import admission
from peer.process import Terminal, exit_code_of, print_json, run_command
from protocol.errors import HetpeerError, RefusedError
from protocol.events.activity import Joined, Progress
from protocol.files import write_atomically
from protocol.identity import Endpoint, ReplicaId
from protocol.net.channels import Credentials
from protocol.net.dht import Dht
from protocol.net.tasks import Children, first_of
from protocol.run.run_files import Descriptor
from protocol.trust import certificates, membership_card
from protocol.trust.keys import load_or_create
from protocol.trust.membership_card import Authority, Card, Role, Signer
from protocol.trust.records import PeerRecord, Register
from protocol.trust.ticket import Ticket, find_ticket
from tests.chaos.attackers import ATTACK, name_attacks, stranger_attacks
from tests.chaos.attackers.hostile_name import CallPace, HostilePeer
from tests.chaos.faults import CrowdKind

Attack = Callable[[HostilePeer], Coroutine[Any, Any, None]]
Kinds = tuple[CrowdKind, ...]

NAMELESS: Kinds = ("dht", "door", "dashboard")
"""One of each is enough, however many names there are: it opens all the connections itself."""

AUTHORS: Kinds = ("flood", "slow", "slots", "equivocation")
"""A name that attacks in one of these ways is admitted as a datacenter, any other as an observer."""

ADMITTED_SECONDS = 60.0
"""Who holds the door's connections waits so long for the names, whose address is the same: they could not come in."""

MINTED = 20
"""Cards that a name gives out once it is a gateway."""

AGAIN_SECONDS = 1.0
"""Between two questions for a place, of who came too soon."""

TOLD_SECONDS = 5.0


@dataclass(slots=True)
class CrowdProcess:
    """All names, and what they attack. `started` is when the first was ready."""

    ticket: Ticket
    descriptor: Descriptor
    targets: list[Endpoint]
    dashboard: str
    folder: Path
    names: list[HostilePeer] = field(default_factory=list)
    pace: CallPace = field(default_factory=CallPace)
    node: Dht | None = None
    expected: int = 0
    """So many names are to be admitted."""
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    """All of them are."""
    strangers: Counter[str] = field(default_factory=Counter)
    """What those did who need no name, by kind."""

    async def name(self, kinds: Kinds, number: int) -> None:
        """Get a place, and attack from there."""
        me = load_or_create(self.folder / str(number))
        while True:
            try:
                role: Role = "datacenter" if {*kinds} & {*AUTHORS} else "observer"
                place = await admission.register(self.ticket, self.descriptor, me, role, None)
                break
            except HetpeerError:
                await asyncio.sleep(AGAIN_SECONDS)
        authority = Authority(self.descriptor.run_id, self.descriptor.operator)
        await self.attack(kinds, Signer(me, authority, place.signed_card), place.card, place.credentials)

    async def attack(self, kinds: Kinds, signer: Signer, card: Card, credentials: Credentials) -> None:
        """What one name does from its admission on."""
        me = signer.identity.peer_id
        role: Role = "observer" if card.role == "observer" else "datacenter"
        replica: ReplicaId | Literal[""] = ReplicaId(me) if role == "datacenter" else ""
        record = PeerRecord(
            peer_id=me, address="", role=role, stage=card.stage, slot=card.slot, on_trial=card.on_trial, replica=replica
        )
        name = HostilePeer(
            "+".join(kinds), signer, credentials, self.descriptor.manifest, self.targets, record, self.pace
        )
        self.names.append(name)
        if len(self.names) >= self.expected:
            self.admitted.set()
        await name.serve()
        print_json(Joined(me, name.kind, card.stage, card.slot, name.record.address))
        try:
            await asyncio.gather(*(attack_of(kind)(name) for kind in kinds))
        finally:
            await name.stop()

    async def gateway(self, number: int) -> None:
        """Ask to be one of those who admit; whoever becomes one admits a crowd of its own."""
        me = load_or_create(self.folder / f"{number}-gateway")
        while True:
            try:
                place = await admission.register(self.ticket, self.descriptor, me, "gateway", None)
                break
            except RefusedError:
                self.strangers["gateway refused"] += 1
            except HetpeerError:
                self.strangers["gateway not answered"] += 1
            await asyncio.sleep(10 * AGAIN_SECONDS)
        self.strangers["gateway admitted"] += 1
        run_id = self.descriptor.run_id
        authority = Authority(run_id, self.descriptor.operator)
        async with asyncio.TaskGroup() as tasks:
            for minted in range(MINTED):
                mine = load_or_create(self.folder / f"{number}-{minted}")
                card = Card(mine.peer_id, "datacenter", 0, 1000 + minted)
                signed = membership_card.issue(me, run_id, card, place.signed_card)
                chain = certificates.certify(me, mine.key.public_key(), time.time(), 3600.0) + place.credentials.chain
                shown = Credentials(certificates.private_key(mine), chain, place.credentials.root)
                tasks.create_task(self.attack(("clock",), Signer(mine, authority, signed), card, shown))

    async def stranger(self, kind: CrowdKind) -> None:
        """Attack in a way that needs no name."""
        if kind == "door":
            with suppress(TimeoutError):
                async with asyncio.timeout(ADMITTED_SECONDS):
                    await self.admitted.wait()
            await stranger_attacks.door(self.ticket.operator)
        elif kind == "dashboard" and self.dashboard:
            await stranger_attacks.dashboard(self.dashboard)
        elif kind == "dht" and self.node is not None:
            await stranger_attacks.dht(self.node, self.folder, self.register)

    async def prepare(self, kinds: Kinds) -> None:
        """What takes seconds, before the attack is told of."""
        if "dht" in kinds:
            self.node = await stranger_attacks.meet(self.folder, self.ticket.addresses, self.register)

    async def stop(self) -> None:
        """End the node of the DHT, if there is one."""
        if self.node is not None:
            await self.node.stop()

    @property
    def register(self) -> Register:
        """The register of the run's records in the DHT."""
        authority = Authority(self.descriptor.run_id, self.descriptor.operator)
        return Register(authority, self.descriptor.manifest)

    def outcomes(self) -> dict[str, dict[str, int]]:
        """How the calls of each kind ended."""
        by_kind: dict[str, Counter[str]] = {"strangers": self.strangers} if self.strangers else {}
        for name in self.names:
            by_kind.setdefault(name.kind, Counter()).update(name.outcomes)
        return {kind: dict(outcomes) for kind, outcomes in by_kind.items()}

    async def tell(self) -> None:
        """Say now and then how it goes, and write it down: a busy process may be killed before it ends in order."""
        while True:
            print_json(Progress(f"{ATTACK}{len(self.names)} names; {json.dumps(self.outcomes())}"))
            self.write_outcomes()
            await asyncio.sleep(TOLD_SECONDS)

    def write_outcomes(self) -> None:
        """Write how the calls ended, the number of names and the CPU time in seconds to `outcomes.json`."""
        said = {"names": len(self.names), "outcomes": self.outcomes(), "cpu_seconds": time.process_time()}
        write_atomically(self.folder / "outcomes.json", json.dumps(said).encode())


def attack_of(kind: CrowdKind) -> Attack:
    """The attack of a name of this kind."""
    attack: Attack = getattr(name_attacks, kind)
    return attack


def shared_out(kinds: Kinds, names: int) -> list[Kinds]:
    """What each name does: one kind, or, where there are more kinds than names, every N-th of them at once."""
    if not kinds:
        return []
    return [kinds[number::names] or (kinds[number % len(kinds)],) for number in range(names)]


async def attack(crowd: CrowdProcess, kinds: Kinds, names: int, seconds: float) -> None:
    """All names at once, and what needs no name, for so long."""
    named = tuple(kind for kind in kinds if kind not in NAMELESS)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
            tasks.create_task(crowd.tell())
            shares = shared_out(named, names)
            crowd.expected = sum(own != ("gateway",) for own in shares)
            if not crowd.expected:
                crowd.admitted.set()
            for kind in kinds:
                if kind in NAMELESS:
                    tasks.create_task(crowd.stranger(kind))
            for number, own in enumerate(shares):
                if "gateway" in own:
                    tasks.create_task(crowd.gateway(number))
                if others := tuple(kind for kind in own if kind != "gateway"):
                    tasks.create_task(crowd.name(others, number))


def main(kind: str, names: int, seconds: float, ticket: str, targets: Path, folder: Path) -> int:
    """Attack as a crowd until the time is over; the exit code."""
    terminal = Terminal(print_json, json=True, until_stdin_closes=True)
    every: Kinds = get_args(CrowdKind)
    kinds = every if kind == "all" else tuple(each for each in every if each == kind)

    async def serve(stop: asyncio.Event) -> None:
        known = json.loads(await asyncio.to_thread(targets.read_text))
        found = find_ticket(ticket, folder)
        honest = [Endpoint(peer, address) for peer, address in known["peers"]]
        crowd = CrowdProcess(found, await admission.fetch_descriptor(found), honest, known["dashboard"], folder)
        await crowd.prepare(kinds)
        async with Children() as children:
            attacking = children.spawn(attack(crowd, kinds, names, seconds))
            await first_of(asyncio.wait((attacking,)), stop.wait())
            crowd.write_outcomes()  # before anything that may take its time to end
        await crowd.stop()
        if not attacking.cancelled():
            await attacking

    folder.mkdir(parents=True, exist_ok=True)
    return exit_code_of(terminal.emit, lambda: run_command(serve, terminal))


if __name__ == "__main__":
    chosen, how_many, how_long, invited, honest_peers = sys.argv[1:6]
    where = Path(sys.argv[sys.argv.index("--dir") + 1])
    sys.exit(main(chosen, int(how_many), float(how_long), invited, Path(honest_peers), where))
