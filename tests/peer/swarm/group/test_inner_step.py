"""Frames on a live link: in one piece or in many they make the same step; of an older time they are refused, and
the weights are as before."""

import asyncio
import math
import threading
import time
from dataclasses import dataclass, field, replace

import pytest
import torch

from peer.compute.replica import WholeReplica
from peer.compute.trainer import StageTrainer
from peer.compute.transfers import DirectTransfers, OnHost
from peer.network.duplex import BreachError
from peer.network.group import Link
from peer.swarm.group.inner_step import InnerStep
from protocol.codec.frames import FrameRules, Payload
from protocol.errors import LostMemberError
from protocol.manifest import check_manifest
from protocol.schemas import pipeline_pb2 as pb
from tests.peer.compute.test_replica import batches, genesis, manifest
from tests.reference.boundary import orthonormal
from tests.reference.loopback_group import Batches, LoopbackStage, Steps, inner_step, loopback_group, take_step
from tests.reference.waiting import until

RUN = manifest(stages=2, compression=4)
RUN3 = manifest(stages=3, compression=4)


def recorded(link: Link) -> list[pb.Frame]:
    """What goes out on a link from now on."""
    kept: list[pb.Frame] = []
    send = link.send

    def keep(frame: pb.Frame) -> None:
        kept.append(frame)
        send(frame)

    link.send = keep  # type: ignore[method-assign]
    return kept


def waiting(steps: Steps) -> Link | None:
    """The link on which something is due at a stage."""
    return steps.inner_step.waiting if steps.inner_step is not None else None


def step_of(stage: LoopbackStage) -> InnerStep:
    assert stage.steps.inner_step is not None
    return stage.steps.inner_step


def weights(stage: LoopbackStage) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in stage.trainer.parameters]


@pytest.mark.parametrize("due", [(1, 1), (2, 0), (1, 0)], ids=["an older step", "an older round", "a microbatch again"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_frame_of_an_older_time_is_refused_and_moves_no_weight(due: tuple[int, int], direction: str):
    """Whoever replays is the neighbour itself: nobody else gets into the link."""

    async def scene() -> None:
        async with loopback_group(RUN, orthonormal(32)) as stages:
            for each in stages:
                each.trainer.load(genesis(RUN))
            sender, victim = stages if direction == "forward" else reversed(stages)
            beside = sender.steps.pipeline
            link = beside.downstream if direction == "forward" else beside.upstream
            assert link is not None
            sent = recorded(link)
            batch = batches(RUN, 1)[0].numpy()
            await inner_step(stages, 1, 0, batch)
            before = weights(victim)
            for _ in range(2 if due == (1, 0) else 1):  # a step that is taken again begins with the same frame
                link.send(sent[0])
            words = f"expected the frame of round {due[0]}, step {due[1]}, microbatch ., got that of round 1, step 0"
            with pytest.raises(BreachError, match=words):
                await victim.steps.take(*due, Batches([batch]) if direction == "backward" else None)
            await victim.steps.pipeline.abandon("a neighbour broke the protocol")
            assert all(map(torch.equal, weights(victim), before))
            assert not any(
                parameter.grad is not None and parameter.grad.any() for parameter in victim.trainer.parameters
            )

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_frames_in_many_pieces_make_the_same_step(monkeypatch: pytest.MonkeyPatch):
    """Gradients come in twice as many as activations."""
    run = manifest(2, 4, "bf16", gradient_wire="fp32")

    async def scene() -> tuple[float, list[torch.Tensor], int]:
        async with loopback_group(run, orthonormal(32)) as stages:
            for each in stages:
                each.trainer.load(genesis(run))
            downstream = stages[0].steps.pipeline.downstream
            assert downstream is not None
            sent = recorded(downstream)
            loss = await inner_step(stages, 1, 0, batches(run, 1)[0].numpy())
            return loss, [weight for each in stages for weight in weights(each)], len(sent)

    loss, whole, frames = asyncio.run(asyncio.wait_for(scene(), 60))
    monkeypatch.setattr("protocol.codec.frames.CHUNK_BYTES", 48)
    assert FrameRules.of(run).activations.messages > 3
    again, in_pieces, messages = asyncio.run(asyncio.wait_for(scene(), 60))
    assert (again, messages) == (loss, (frames - 1) * FrameRules.of(run).activations.messages + 1)  # and the step's end
    assert FrameRules.of(run).gradients.messages > FrameRules.of(run).activations.messages
    assert all(map(torch.equal, whole, in_pieces))


COPY_SECONDS = 0.01


@dataclass(slots=True)
class Lagging:
    """An outcome that comes when its gate is open, or that a device fails to compute."""

    ready: OnHost
    gate: threading.Event
    error: Exception | None = None

    def wait(self) -> OnHost:
        assert self.gate.wait(30), "the torch thread waited for a copy"
        time.sleep(COPY_SECONDS)  # so long the device computes and copies; nothing waits for so long to be enough
        if self.error is not None:
            raise self.error
        return replace(self.ready, seconds=0.25)


@dataclass(slots=True)
class LaggingTransfers:
    """A device whose first outcome comes only when the next pass has been ordered, as a card's may; all others come
    later than the call that orders them, too."""

    direct: DirectTransfers
    error: Exception | None = None
    passes: int = 0
    second: threading.Event = field(default_factory=threading.Event)
    lagging: list[Lagging] = field(default_factory=list)

    def arrive(self, data: bytes, payload: Payload) -> torch.Tensor:
        return self.direct.arrive(data, payload)

    def begin_pass(self) -> None:
        self.passes += 1
        if self.passes == 2:
            self.second.set()

    def leave(self, out: torch.Tensor | None, begun: None) -> Lagging:
        self.lagging.append(Lagging(self.direct.leave(out, begun), self.second, self.error))
        return self.lagging[-1]


def lag(stage: LoopbackStage, error: Exception | None = None) -> LaggingTransfers:
    """Let a stage compute on such a device."""
    transfers = LaggingTransfers(DirectTransfers(torch.device("cpu")), error)
    stage.connected = Steps(replace(stage.steps.pipeline, transfers=transfers))
    return transfers


@pytest.mark.parametrize("overlap", [0, 1])
def test_the_next_pass_is_ordered_while_the_outcome_of_the_last_is_on_its_way(overlap: int):
    run = check_manifest(
        {**RUN3.model_dump(), "inner": {**RUN3.inner.model_dump(), "sequences": 12, "overlap": overlap}}
    )

    async def scene(lags: bool) -> tuple[list[float], list[torch.Tensor], list[float]]:
        async with loopback_group(run, orthonormal(32)) as stages:
            for stage in stages:
                stage.trainer.load(genesis(run))
            if lags:
                lag(stages[0])
                for stage in stages[1:]:
                    lag(stage).second.set()  # 1F1B gives the last one nothing else to do
            source, losses, passes = Batches([batch.numpy() for batch in batches(run, 3)], most=3), [], []
            for step in range(3):
                taken = await asyncio.gather(
                    *(stage.steps.take(1, step, None if stage.trainer.index else source) for stage in stages)
                )
                losses.append(taken[0].sums.loss)
                passes.append(taken[0].sums.passes[0])
                source.at += 1
                assert all(not step_of(stage).seconds for stage in stages) or overlap  # all of them are summed up
            return losses, [weight for stage in stages for weight in weights(stage)], passes

    losses, moved, _ = asyncio.run(asyncio.wait_for(scene(lags=False), 60))
    again, moved_again, passes = asyncio.run(asyncio.wait_for(scene(lags=True), 60))
    assert again == losses
    assert all(map(torch.equal, moved, moved_again))
    assert passes == [0.5, 0.5, 0.5]  # forward and backward, as the device says


def test_an_outcome_that_cannot_be_computed_ends_the_step():
    async def scene() -> None:
        async with loopback_group(RUN, orthonormal(32)) as stages:
            for stage in stages:
                stage.trainer.load(genesis(RUN))
            lag(stages[0], RuntimeError("an illegal memory access was encountered")).second.set()
            with pytest.raises(RuntimeError, match="illegal memory access"):
                await stages[0].steps.take(1, 0, Batches([batches(RUN, 1)[0].numpy()]))

    asyncio.run(asyncio.wait_for(scene(), 60))


FORMATS = [("bf16", "int8"), ("int4", "fp32"), ("int8", "int4"), ("fp32", "bf16")]


@pytest.mark.parametrize("compression", [1, 4])
@pytest.mark.parametrize(("wire", "gradient_wire"), FORMATS)
def test_a_step_over_links_is_that_of_one_process_where_activations_and_gradients_differ_in_format(
    wire: str, gradient_wire: str, compression: int
):
    """Equal formats would hide that one is taken for the other."""
    run = manifest(3, compression, wire, gradient_wire=gradient_wire)
    alone = WholeReplica(run, "group", orthonormal(32), torch.device("cpu"))
    alone.load(genesis(run))
    losses = [alone.inner_step(batch, number) for number, batch in enumerate(batches(run, 2))]

    async def scene() -> list[float]:
        async with loopback_group(run, orthonormal(32)) as stages:
            for each in stages:
                each.trainer.load(genesis(run))
            taken = [await inner_step(stages, 1, n, batch.numpy()) for n, batch in enumerate(batches(run, 2))]
            for each, same in zip(stages, alone.stages, strict=True):
                assert all(map(torch.equal, weights(each), [p.detach() for p in same.parameters]))
            return taken

    assert asyncio.run(asyncio.wait_for(scene(), 60)) == losses


def test_each_stage_clips_its_first_overlapping_step_by_its_own_norm_for_all_three_stages(
    monkeypatch: pytest.MonkeyPatch,
):
    inner = {"overlap": 1, "sequences": 8, "clip": 1e-3}
    run = RUN3.model_copy(update={"inner": RUN3.inner.model_copy(update=inner)})
    clipped: dict[int, tuple[float, float]] = {}
    update = StageTrainer.update

    def noted(self: StageTrainer, clip_factor: float, step: float) -> None:
        clipped[self.index] = self.squared_norm(), clip_factor
        update(self, clip_factor, step)

    monkeypatch.setattr(StageTrainer, "update", noted)

    async def scene() -> None:
        async with loopback_group(run, orthonormal(32)) as stages:
            for each in stages:
                each.trainer.load(genesis(run))
            await take_step(stages, 1, 0, Batches([batches(run, 1)[0].numpy()], most=1))

    asyncio.run(asyncio.wait_for(scene(), 60))
    assert clipped.keys() == {0, 1, 2}
    for square, factor in clipped.values():
        assert factor == pytest.approx(1e-3 / math.sqrt(3 * square), rel=1e-4)


@pytest.mark.parametrize(("goal", "halfway"), [(0, 10.0), (40, 5.0), (10, 20.0)])
def test_a_step_has_the_learning_rate_of_its_share_of_the_steps_that_the_replica_means_to_take(
    goal: int, halfway: float, monkeypatch: pytest.MonkeyPatch
):
    """H = 20; step 10 is at half of it, at a quarter of 40 steps, or at the end of 10."""
    steps: list[float] = []
    update = StageTrainer.update

    def noted(self: StageTrainer, clip_factor: float, step: float) -> None:
        steps.append(step)
        update(self, clip_factor, step)

    monkeypatch.setattr(StageTrainer, "update", noted)

    async def scene() -> None:
        async with loopback_group(RUN, orthonormal(32)) as stages:
            for each in stages:
                each.trainer.load(genesis(RUN))
                each.steps.pipeline = replace(each.steps.pipeline, goal=goal)
            await inner_step(stages, 2, 10, batches(RUN, 1)[0].numpy())

    asyncio.run(asyncio.wait_for(scene(), 60))
    assert steps == [20.0 + halfway] * 2


class Held(StageTrainer):
    """Takes no step, and computes no norm, before it may."""

    may: threading.Event

    def squared_norm(self) -> float:
        assert self.may.wait(60)
        return super().squared_norm()


def test_who_has_done_its_part_says_whose_sums_or_word_it_waits_for():
    """By that a leader finds out who holds a step up."""

    async def scene() -> None:
        async with loopback_group(RUN3, orthonormal(32)) as stages:
            for each in stages:
                each.trainer.load(genesis(RUN3))
            stages[1].trainer.__class__ = Held
            stages[1].trainer.may = threading.Event()  # type: ignore[attr-defined]
            stepping = asyncio.ensure_future(inner_step(stages, 1, 0, batches(RUN3, 1)[0].numpy()))
            first, _, last = (each.steps for each in stages)
            await until(lambda: waiting(first) is first.pipeline.downstream and waiting(last) is last.pipeline.upstream)
            stages[1].trainer.may.set()  # type: ignore[attr-defined]
            await stepping
            assert waiting(first) is None
            assert waiting(last) is None

    asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize(
    "sent", [pb.Frame(rest=b"1"), pb.Frame(end=pb.StepEnd(round=1, step=1)), pb.Frame(sums=pb.StepSums())]
)
def test_a_neighbour_that_says_of_a_step_what_cannot_be_breaks_the_protocol_and_no_weight_moves(
    stage: int, sent: pb.Frame, monkeypatch: pytest.MonkeyPatch
):
    """The stage behind the first sends it instead of its sums, or the first instead of the step's end."""
    name = "pack_end" if stage else "pack_sums"
    monkeypatch.setattr(f"peer.swarm.group.inner_step.{name}", lambda *_: sent)

    async def scene() -> None:
        async with loopback_group(RUN, orthonormal(32)) as stages:
            for each in stages:
                each.trainer.load(genesis(RUN))
            before = weights(stages[stage])
            first, second = (each.steps for each in stages)
            running = [first.take(1, 0, Batches([batches(RUN, 1)[0].numpy()])), second.take(1, 0, None)]
            taking = [asyncio.ensure_future(each) for each in running]
            with pytest.raises(BreachError, match=r"expected the (end|sums) of round 1, step 0|no clip factor"):
                await taking[stage]
            assert all(map(torch.equal, weights(stages[stage]), before))
            taking[1 - stage].cancel()
            await asyncio.gather(*taking, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scene(), 60))


def test_what_the_first_stage_learns_while_a_step_lasts_can_make_it_the_last():
    async def scene() -> None:
        async with loopback_group(RUN, orthonormal(32)) as stages:
            for each in stages:
                each.trainer.load(genesis(RUN))
            source = Batches([each.numpy() for each in batches(RUN, 2)])
            first, second = (each.steps for each in stages)
            taking = asyncio.ensure_future(first.take(1, 0, source))
            await until(lambda: waiting(first) is not None)
            source.most = 1  # the others wait for this round
            assert (await second.take(1, 0, None)).last
            assert (await taking).last

    asyncio.run(asyncio.wait_for(scene(), 60))


@pytest.mark.parametrize("gone", [0, 2], ids=["the stage before", "the stage behind"])
def test_a_stage_that_waits_for_one_neighbour_learns_that_the_other_is_gone(gone: int):
    """The step cannot end without it; and who is waited for may wait for this stage."""
    run = RUN3.model_copy(update={"inner": RUN3.inner.model_copy(update={"sequences": RUN3.inner.microbatch})})

    async def scene() -> None:
        async with loopback_group(run, orthonormal(32)) as stages:
            for each in stages:
                each.trainer.load(genesis(run))
            first, middle, last = (each.steps for each in stages)
            at_work = asyncio.ensure_future(middle.take(1, 0, None))
            other = last
            if gone == 0:
                other = first
                sending = asyncio.ensure_future(first.take(1, 0, Batches([batches(run, 1)[0].numpy()])))
                await until(lambda: waiting(middle) is middle.pipeline.downstream)  # the last stage takes no part
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            else:
                await until(lambda: waiting(middle) is middle.pipeline.upstream)
            for link in other.pipeline.links:
                link.abort("gone")
            with pytest.raises(LostMemberError):
                await at_work
            await middle.pipeline.abandon("its group is broken")

    asyncio.run(asyncio.wait_for(scene(), 30))
