"""The work of each role: a volunteer trains one stage in replica groups, a datacenter trains a whole replica, and an
observer follows the rounds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import torch

from peer.compute.calibration import rounded_speed, tokens_per_second
from peer.compute.evaluation import Evaluates, Evaluator
from peer.compute.replica import Replica, WholeReplica
from peer.compute.trainer import StageTrainer
from peer.devices.machines import Hello, Machines
from peer.devices.parallel_replica import ShardedEvaluator, ShardedReplica
from peer.devices.workers import Split
from peer.network.machine_link import LinkListener, read_secret
from peer.network.receipt_exchange import ReceiptCollector
from peer.optim.inner import place_in_run
from peer.swarm import waits
from peer.swarm.auditing import Auditor, do_spot_checks
from peer.swarm.group.compression import KController
from peer.swarm.group.first_stage import FirstStage
from peer.swarm.group.handover import Handover
from peer.swarm.group.later_stage import LaterStage
from peer.swarm.group.seats import GroupSeats
from peer.swarm.group.spot_checks import StageSpotChecks
from peer.swarm.group.stage_round import StageRound
from peer.swarm.group.stragglers import StepPace, first_seconds
from peer.swarm.node import Node, Workplace
from peer.swarm.presence import outer_loop, swarm_membership
from peer.swarm.rounds.catch_up import agree
from peer.swarm.rounds.outer_round import OuterLoop
from peer.swarm.rounds.round_end import emit_round_done, finish_round, wait_for_round
from peer.swarm.rounds.round_view import why_end_steps
from peer.swarm.text_reader import Reader
from protocol.clock import monotonic
from protocol.errors import LostMemberError
from protocol.events.activity import Evaluated, Notice, Progress, StepDone
from protocol.events.decisions import EndedEarly, SpotChecked
from protocol.identity import parts_authored
from protocol.layout import model_layout
from protocol.manifest import Manifest
from protocol.net.blobs import BlobService
from protocol.net.tasks import Children
from protocol.outer.data_plan import Spans
from protocol.wording import so_many

MEND_SECONDS = 2.0
"""The interval at which idle worker processes are checked, in seconds."""

MISSING_SECONDS = 60.0
"""The seconds that an evaluation waits for a machine that has been lost in it."""

COMPILING = "torch compiles the layers, which takes a minute or more"


async def serve_stage(node: Node) -> None:
    """Train one stage in one group after another, and follow the rounds in between. A volunteer that leaves before the
    last round hands over."""
    workplace, services, settings = node.workplace, node.services, node.settings
    arithmetic = settings.arithmetic(
        workplace.manifest, workplace.stage, workplace.device
    )  # before anything takes memory
    outer = await outer_loop(node, parts_authored(workplace.stage))
    thread = workplace.torch_thread
    node.emit(Progress(arithmetic.words(workplace.device)))
    make = partial(
        StageTrainer, workplace.manifest, workplace.stage, "group", await workplace.basis(), workplace.device
    )
    trainer = await thread.run(partial(make, arithmetic=arithmetic))
    await thread.run(trainer.load, outer.followed.grids)
    if arithmetic.compiled:  # before others wait for this peer
        node.emit(Progress(COMPILING))
    speed = await thread.run(tokens_per_second, trainer)
    node.discovery.update_record(tokens_per_second=rounded_speed(speed))
    await thread.run(trainer.forget_start)  # each round loads its own; a spare may follow for long
    async with swarm_membership(node, outer) as tasks:
        stage_round = StageRound(
            outer,
            trainer,
            Handover(outer, services.handover, trainer),
            services.blobs,
            node.receipt_collector,
            settings.memory_limit,
            pace=StepPace(first=first_seconds(workplace.manifest.tokens_per_step, speed)),
        )
        spot_checks = StageSpotChecks(outer, tasks)
        seats = GroupSeats(node.reconciler, services.pipeline, tasks, spot_checks.receive_doubt)
        if workplace.stage == 0:
            async with workplace.reading(node.emit) as reader:
                await reader.begin(outer.workload.upcoming(outer.clock, outer.workload.share(outer.clock)))
                k_controller = KController.of(workplace.manifest)
                await FirstStage(stage_round, seats, spot_checks, reader, k_controller).serve()
        else:
            await LaterStage(stage_round, seats, spot_checks).serve()
        if not outer.over:
            await stage_round.handover.hand_over(for_good=node.next_stage.done())
    outer.announce_finish()


async def serve_datacenter(node: Node) -> None:
    """Train a whole, uncompressed replica through all rounds. The first datacenter also evaluates, and so does one that
    audits."""
    workplace, audits = node.workplace, node.settings.audit
    manifest = node.settings.computed_manifest(workplace.manifest, workplace.device)
    split = node.settings.split(manifest, workplace.device)
    size, of_groups = manifest.inner.microbatch, workplace.manifest.inner.microbatch
    microbatches = so_many(size, "sequence") + (f" (the run's groups: {of_groups})" if size != of_groups else "")
    node.emit(Notice(split.arithmetic.words(workplace.device, microbatches)))
    async with _replica(node, manifest, split) as replica:
        outer = await outer_loop(node, list(model_layout(workplace.manifest)))
        await _all_there(outer, replica, lambda: outer.leaving or outer.over)
        async with workplace.reading(node.emit) as reader:
            first = node.discovery.record.slot == workplace.manifest.replicas.total - 1
            evaluator = await _evaluator(workplace, reader, replica) if first or audits else None
            auditor = Auditor(evaluator) if evaluator is not None and audits else None
            await reader.begin(outer.workload.upcoming(outer.clock, outer.workload.share(outer.clock)))
            if node.settings.compiled:  # before others wait for this peer
                node.emit(Progress(COMPILING))
                with suppress(LostMemberError):  # the first round begins with it, then
                    await workplace.torch_thread.run(replica.load, outer.followed.grids)
                    await workplace.torch_thread.run(replica.warm_up)
            await workplace.torch_thread.run(replica.load_optimizer, outer.optimizer)
            async with swarm_membership(node, outer):
                await node.discovery.publish(replica=node.discovery.record.peer_id)
                while not (outer.begun or outer.over or outer.leaving):
                    node.emit(waits.for_the_beginning(node.discovery.peers(), outer.manifest))
                    await node.discovery.news.wait(1.0)
                while not (outer.over or outer.leaving):
                    round = outer.clock
                    await _train_round(outer, replica, reader, node.receipt_collector, node.services.blobs, round)
                    if not (outer.leaving or outer.missed_end):
                        await _evaluate(outer, evaluator, round)
                    if auditor is not None:
                        try:
                            await auditor.audit(outer)
                        except LostMemberError as error:
                            outer.emit(Progress(f"{error}; round {round} is not audited to its end"))
        outer.announce_finish()
        if outer.over and isinstance(replica, ShardedReplica):
            replica.end_run()


@asynccontextmanager
async def _replica(node: Node, manifest: Manifest, split: Split) -> AsyncIterator[Replica]:
    """Make the replica to train, in this process or in several, which end with the block. `manifest` has the microbatch
    of this replica."""
    workplace, settings = node.workplace, node.settings
    if split.ranks == 1:
        yield await workplace.torch_thread.run(
            lambda: WholeReplica(manifest, "datacenter", None, workplace.device, arithmetic=split.arithmetic)
        )
        return
    loop = asyncio.get_running_loop()

    def say(doing: str) -> None:
        loop.call_soon_threadsafe(node.emit, Progress(doing))

    async def keep_mending() -> None:
        while True:
            await asyncio.sleep(MEND_SECONDS)
            await workplace.torch_thread.run(replica.mend)

    machines = None
    if split.machines > 1:
        meeting = settings.meeting
        secret = read_secret(meeting.secret_file, make=True)
        hello = Hello.of(split.machines, split.processes, workplace.device.type, workplace.manifest.digest)
        machines = Machines(hello, partial(LinkListener, meeting.host, meeting.port, secret))
    replica = ShardedReplica(manifest, workplace.device, split, say, machines)
    try:
        async with Children() as children:
            children.spawn(keep_mending())
            if machines is None:
                await workplace.torch_thread.run(replica.start)
            yield replica
    finally:
        await asyncio.to_thread(replica.stop)


async def _all_there(outer: OuterLoop, replica: object, ends: Callable[[], object]) -> bool:
    """Wait until all machines of a replica are there, and say which are missing. Returns False if `ends` came true
    first. A replica on one machine has all of them."""
    reported = ""
    while isinstance(replica, ShardedReplica) and (missing := replica.missing()):
        if ends():
            return False
        if missing != reported:
            reported = missing
            outer.emit(Progress(missing))
        await outer.discovery.news.wait(1.0)
    return True


async def follow_and_evaluate(node: Node) -> None:
    """Follow all rounds and evaluate each, unless this peer only holds the last state; contribute nothing."""
    outer = await outer_loop(node, [])
    evaluator = None
    if not node.settings.hold:
        async with node.workplace.reading(node.emit) as reader:
            evaluator = await _evaluator(node.workplace, reader, None)
    auditor = Auditor(evaluator) if evaluator is not None and node.settings.audit else None
    if isinstance(evaluator, Evaluator) and auditor is not None:
        do_spot_checks(evaluator, outer, node.services.spot_checks)
    async with swarm_membership(node, outer):
        while not outer.over:
            round, started = outer.clock, monotonic()
            if not await wait_for_round(outer, round, lambda: outer.leaving) and not outer.is_behind:
                break
            if counts := await finish_round(outer, round):
                emit_round_done(outer, round, started, 0, counts, (0, node.services.blobs.bytes_sent))
            if (checks := node.services.spot_checks.take_stock())[0]:
                node.emit(SpotChecked(round, *checks))
            await agree(outer)
            await _evaluate(outer, evaluator, round)
            if auditor is not None:
                await auditor.audit(outer)
    outer.announce_finish()


async def _train_round(
    outer: OuterLoop,
    replica: Replica,
    reader: Reader,
    receipt_collector: ReceiptCollector,
    blobs: BlobService,
    round: int,
) -> None:
    """The inner loop, then the outer step."""
    started = monotonic()
    steps = await _contribute(outer, replica, reader, round)
    if outer.leaving:
        return
    if counts := await finish_round(outer, round):
        emit_round_done(outer, round, started, steps, counts, (0, blobs.bytes_sent))
        receipt_collector.ask_soon()
    await agree(outer)


async def _contribute(outer: OuterLoop, replica: Replica, reader: Reader, round: int) -> int:
    """Train and contribute; how many inner steps. A replica that loses one of its processes begins the round again."""
    share = outer.workload.begin(round)
    while True:
        if not await _all_there(
            outer, replica, lambda: outer.contributed or why_end_steps(outer, round) or outer.leaving or outer.over
        ):
            return 0
        try:
            steps = await _inner_loop(outer, replica, reader, share, round)
            if not steps:
                return 0
            moved = await outer.followed.torch_thread.run(replica.moved)
            optimizer = await outer.followed.torch_thread.run(replica.optimizer_tensors)
        except LostMemberError as error:
            if outer.leaving:
                return 0
            outer.emit(Progress(f"{error}; going on from the start of round {round}"))
        else:
            if steps < outer.manifest.inner.steps:
                why = "this peer leaves" if outer.leaving else why_end_steps(outer, round)
                outer.emit(EndedEarly(round, steps, why or "it had contributed to it before"))
            await outer.contribute(round, steps, moved, optimizer, share)
            await outer.followed.torch_thread.run(replica.forget_start)
            return steps


async def _inner_loop(outer: OuterLoop, replica: Replica, reader: Reader, share: Spans, round: int) -> int:
    """An inner step for each chunk of the share, or as many as the others leave time for; how many."""
    manifest, steps, goal = outer.manifest, 0, outer.workload.goal
    await outer.followed.torch_thread.run(replica.load, outer.followed.grids, await outer.followed.ahead(round))
    while steps < goal and not (outer.contributed or why_end_steps(outer, round, steps) or outer.leaving):
        batch_SM = torch.from_numpy(await reader.batch(outer.workload.upcoming(round, share, steps)))
        overall = place_in_run(manifest, round, steps, goal)
        loss = await outer.followed.torch_thread.run(replica.inner_step, batch_SM, overall)
        outer.emit(StepDone(round, steps, loss, manifest.tokens_per_step))
        steps += 1
    return steps


async def _evaluator(place: Workplace, reader: Reader, replica: Replica | None) -> Evaluates:
    held_out_SM, basis_DD = torch.from_numpy(await reader.held_out()), await place.basis()
    if isinstance(replica, ShardedReplica):
        return ShardedEvaluator(replica, basis_DD, held_out_SM)
    own = replica if isinstance(replica, WholeReplica) else None
    return await place.torch_thread.run(
        lambda: Evaluator(place.manifest, basis_DD, held_out_SM, place.device, replica=own)
    )


async def _evaluate(outer: OuterLoop, evaluator: Evaluates | None, round: int) -> None:
    """Emit the held-out loss of θ after `round`; without an evaluator do nothing. If a machine of the replica is lost
    meanwhile, wait for it, up to `MISSING_SECONDS`, and evaluate again."""
    if evaluator is None:
        return
    replica = evaluator.replica if isinstance(evaluator, ShardedEvaluator) else None
    while True:
        until = monotonic() + MISSING_SECONDS
        if not await _all_there(outer, replica, partial(_gives_up, outer, until)):
            outer.emit(Progress(f"round {round} is not evaluated: a machine is missing"))
            return
        try:
            loss, loss_plain = await outer.followed.torch_thread.run(evaluator.evaluate, outer.followed.grids)
        except LostMemberError as error:
            if outer.leaving:
                raise
            outer.emit(Progress(f"{error}; evaluating once more"))
        else:
            outer.emit(Evaluated(round, loss, loss_plain))
            return


def _gives_up(outer: OuterLoop, until: float) -> bool:
    return outer.leaving or monotonic() > until
