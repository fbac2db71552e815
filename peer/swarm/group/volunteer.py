"""A volunteer: one stage of a replica group, from the first hello to the last round."""

from peer.compute.calibration import tokens_per_second, told
from peer.compute.trainer import StageTrainer
from peer.swarm.group.compression import Choice
from peer.swarm.group.handover import Handover
from peer.swarm.group.leader import Leader
from peer.swarm.group.member import Member
from peer.swarm.group.stage_round import StageRound
from peer.swarm.node import Node
from protocol.identity import parts_authored


async def serve_stage(node: Node) -> None:
    """Train in one group after another, and follow the rounds in between. Who leaves before the last hands over."""
    outer = await node.outer_loop(parts_authored(node.stage))
    trainer = await node.torch_thread.run(
        StageTrainer, node.manifest, node.stage, "group", await node.basis(), node.device
    )
    await node.torch_thread.run(trainer.load, outer.followed.grids)
    node.discovery.tell(tokens_per_second=told(await node.torch_thread.run(tokens_per_second, trainer)))
    if node.split_backward:
        trainer.split_backward()
    async with node.in_the_swarm(outer) as tasks:
        here = StageRound(node, outer, trainer, tasks, Handover(outer, node.handover, trainer))
        if node.stage == 0:
            async with node.reading() as reader:
                await reader.begin(outer.upcoming(outer.clock, outer.share(outer.clock)))
                await Leader(here, reader, Choice.of(node.manifest)).serve()
        else:
            await Member(here).serve()
        if not outer.over:
            await here.handover.hand_over()
    node.emit_finished(outer)
