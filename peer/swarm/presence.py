"""A peer's presence in the swarm: it takes up its outer state, meets the others, keeps in touch, and goes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from peer.model.first_weights import read_part
from peer.network.discovery import keep_remembering
from peer.network.gossip import Reconciler
from peer.optim.outer import OuterState
from peer.swarm import surplus, waits
from peer.swarm.last_holder import hand_over_state, keep_telling
from peer.swarm.node import Node, Upkeep
from peer.swarm.rounds.catch_up import ABREAST, catch_up, come_abreast, resume_from_folder
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.parts import FollowedPart, FollowedParts
from peer.swarm.rounds.round_policy import Pace
from peer.swarm.run_end import ask_whether_over, keep_asking_the_node, reporting_a_long_wait, serve_the_end
from peer.telemetry.sensors import device_readings
from protocol.clock import monotonic
from protocol.events.activity import Pulse
from protocol.events.event import Listener
from protocol.identity import Part
from protocol.net.tasks import wait_at_most
from protocol.patience import CALL_SECONDS, LAST_RECEIPTS_SECONDS

PULSE_SECONDS = 5.0
"""The interval at which a peer tells its rates and how many peers it knows."""


async def outer_loop(node: Node, authored: Sequence[Part]) -> OuterLoop:
    """Take up the outer state of the parts that a peer follows, as its folder has it, or at genesis; with error
    feedback for the parts that it authors."""
    workplace, intake = node.workplace, node.reconciler.intake
    parts = {}
    for part, ledger in intake.ledgers.items():
        genesis = await workplace.torch_thread.run(read_part, workplace.directory, workplace.manifest, part)
        parts[part] = FollowedPart(OuterState.begin(workplace.manifest, part, genesis, part in authored), ledger)
    followed = FollowedParts(
        manifest=workplace.manifest,
        run_id=node.discovery.run_id,
        me=node.discovery.record.peer_id,
        parts=parts,
        contribution_store=intake.contribution_store,
        snapshots=node.services.snapshots,
        torch_thread=workplace.torch_thread,
    )
    outer = OuterLoop(
        manifest=workplace.manifest,
        folder=workplace.directory,
        followed=followed,
        discovery=node.discovery,
        reconciler=node.reconciler,
        emit=node.emit,
        pace=Pace(workplace.manifest.outer.patience),
        asked_to_leave=node.asked_to_leave,
    )
    await resume_from_folder(outer)
    intake.begin(followed.check)
    return outer


@asynccontextmanager
async def swarm_membership(node: Node, outer: OuterLoop) -> AsyncIterator[asyncio.TaskGroup]:
    """Meet the others, come abreast of the run, and keep in touch as long as the block lasts. At its end, serve until
    everybody has finished the last round, see that others have what this peer made, and say goodbye."""
    async with asyncio.TaskGroup() as tasks:
        keeping = await _join_swarm(node, outer, tasks)
        yield tasks
        await serve_the_end(node, outer)
        await hand_over_state(node, outer)
        await _say_goodbye(node, outer)
        for task in keeping:
            task.cancel()


async def _join_swarm(node: Node, outer: OuterLoop, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
    """Meet the others and come abreast of the run. Returns what goes on until this peer leaves."""
    discovery, reconciler = node.discovery, node.reconciler
    steady: tuple[Upkeep, ...] = (
        discovery.keep_publishing,
        discovery.keep_reading,
        discovery.keep_attached,
        partial(keep_remembering, outer.folder, discovery),
        *node.upkeep,
        outer.watch_arrivals,
        partial(_keep_pulse, reconciler, node.emit),
        partial(keep_telling, outer),
        node.receipt_collector.keep_asking,
    )
    keeping = [tasks.create_task(keep()) for keep in steady]
    await discovery.read()
    reconciler.keep_promises()
    await ask_whether_over(outer, node.ask_node)
    async with reporting_a_long_wait(node.emit, lambda: waits.for_word(discovery.others())):
        await catch_up(outer)
    keeping.append(tasks.create_task(keep_asking_the_node(outer, node.ask_node)))
    keeping.append(tasks.create_task(reconciler.keep_comparing()))
    keeping.append(tasks.create_task(keep_looking_where_needed(node)))
    await discovery.publish()
    if outer.phase not in ABREAST:
        await come_abreast(outer)
        await discovery.publish()
    return keeping


async def _say_goodbye(node: Node, outer: OuterLoop) -> None:
    """Collect the last receipts, hand out what this peer has made, and tell the others that it is gone."""
    discovery = node.discovery
    await wait_at_most(LAST_RECEIPTS_SECONDS, node.receipt_collector.ask())
    discovery.update_record(gone=True, replica="")
    async with reporting_a_long_wait(node.emit, lambda: waits.for_hearers(discovery.others(), CALL_SECONDS)):
        await node.reconciler.hand_out()
    if outer.finished and not outer.followed.is_settled(outer.last_settled):
        await outer.settle()  # what has come while this peer said goodbye is with the others, too
    await discovery.publish()


async def keep_looking_where_needed(node: Node) -> None:
    """Leave for another stage when this volunteer has been surplus for long, that one is short, and its owner has
    agreed to it. Returns when it leaves."""
    discovery, manifest, watch = node.discovery, node.workplace.manifest, surplus.Watch()
    while discovery.record.moves_to and not node.asked_to_leave.is_set():
        await asyncio.sleep(PULSE_SECONDS)
        me = discovery.record
        stage = watch.look(discovery.peers(), me, manifest.replicas.stages, monotonic())
        if stage is not None and me.round + 1 < manifest.outer.rounds and not node.asked_to_leave.is_set():
            node.next_stage.set_result(stage)
            node.leave(f"{waits.surplus_of(me.stage, stage)}; it moves there, as its owner allows")


async def _keep_pulse(reconciler: Reconciler, emit: Listener) -> None:
    """Say how it goes, for as long as this peer lives."""
    bandwidth, discovery = reconciler.contacts.bandwidth, reconciler.discovery
    up, down = bandwidth.up, bandwidth.down
    while True:
        lost = len(discovery.missed())
        peers = len(discovery.others()) + lost
        device = await asyncio.to_thread(device_readings)
        emit(Pulse(up.frames_carried, up.bulk_carried, down.frames_carried, down.bulk_carried, peers, lost, device))
        await asyncio.sleep(PULSE_SECONDS)
