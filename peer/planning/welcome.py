"""The words with which a run introduces itself to who joins: what it makes, whose it is, and what it takes."""

from peer.planning.model import HEADERS_SHARE, work_of
from protocol.layout import parameter_count
from protocol.manifest import Manifest
from protocol.run.run_files import Descriptor
from protocol.trust.membership_card import Role
from protocol.wording import millions, size, tail


def introduction(descriptor: Descriptor) -> str:
    """The run, in a sentence."""
    manifest = descriptor.manifest
    inner, outer = manifest.inner, manifest.outer
    tokens = manifest.tokens_per_step * inner.steps * outer.rounds * manifest.replicas.total
    return (
        f"the run {manifest.run.name} trains a model of {millions(parameter_count(manifest))} parameters on "
        f"{tokens / 1e9:,.3g} billion tokens of text, in {outer.rounds:,} rounds; its operator is "
        f"{tail(descriptor.operator)}"
    )


def what_it_takes(manifest: Manifest, role: Role, stage: int) -> str:
    """The part of the run that a peer does, and the traffic that it takes, in a sentence; empty for who only looks."""
    if role == "observer":
        return ""
    rounds, moved = manifest.outer.rounds, bytes_of_a_round(manifest, role, stage)
    does = f"stage {stage} of {manifest.replicas.stages}" if role == "volunteer" else "a whole replica"
    return (
        f"this peer does {does}, and sends {size(moved)} a round and receives as much: {size(rounds * moved)} each way "
        f"in all {rounds:,} rounds"
    )


def bytes_of_a_round(manifest: Manifest, role: Role, stage: int) -> float:
    """The bytes that a peer sends in a round, with the share that is not content: frames to the stages beside it, and
    its contribution for each other replica."""
    stages = (stage,) if role == "volunteer" else range(manifest.replicas.stages)
    works = [work_of(manifest, stage=stage_index) for stage_index in stages]
    frames = works[0].carried * works[0].microbatches * works[0].steps if role == "volunteer" else 0.0
    exchanged = (manifest.replicas.total - 1) * sum(work.contribution for work in works)
    return (frames + exchanged) / (1 - HEADERS_SHARE)
