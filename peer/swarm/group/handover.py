"""A volunteer that leaves hands error feedback and the optimizer's state to another of its stage; and takes those of
others.

All of it is done by the peer's own loop, between two inner steps or while it waits: nothing else changes the error
feedback then. `protocol/trust/handovers.py` says why nothing counts twice.
"""

from dataclasses import dataclass

import torch

from peer.compute.trainer import StageTrainer
from peer.network.handover_service import HandoverService, PendingHandover, offer_handover
from peer.optim.handover_state import HandoverState, added, pack_state, returned, unpack_state
from peer.optim.outer import OuterState
from peer.swarm.roles import successors
from peer.swarm.rounds.outer_round import OuterLoop
from peer.torch_thread import TorchThread
from protocol.errors import FormatError, HetpeerError
from protocol.events.activity import HandedOver, Inherited, Progress
from protocol.identity import Part, PeerId, parts_authored
from protocol.trust.handovers import HandoverOffer, Handovers
from protocol.trust.records import PeerRecord

SUCCESSORS_TRIED = 3
"""Each may take seconds to decline, and a leaver has half a minute."""


@dataclass(slots=True)
class Handover:
    """The state that one volunteer hands over, and that it takes over from others."""

    outer: OuterLoop
    service: HandoverService
    trainer: StageTrainer

    def __post_init__(self) -> None:
        self.service.begin(self.outer.handovers)

    @property
    def handovers(self) -> Handovers:
        """The handovers that this volunteer has given and taken."""
        return self.outer.handovers

    # The successor's side

    def open(self) -> None:
        """Take handovers from now on."""
        self.service.open_for_offers()

    def close(self) -> None:
        """Take no handovers from now on: this peer leaves."""
        self.service.close_for_offers()
        pending = self.service.next()
        if pending is not None:
            pending.answer.set_result("this peer leaves, too")

    @property
    def has_offer(self) -> bool:
        """Whether a handover waits to be taken."""
        return self.service.waiting is not None

    async def accept_handover(self) -> None:
        """Take over what a leaver offers, if one does."""
        pending = self.service.next()
        if pending is None:
            return
        giver = pending.offer.giver
        try:
            optimizer = await self._thread.run(self._absorb, pending)
        except FormatError as error:
            self.outer.reconciler.bans.note(giver, error)
            pending.answer.set_result(str(error))
            return
        self.handovers.taken[giver] = pending.offer.number
        await self.outer.save({})
        pending.answer.set_result("")
        self.outer.emit(Inherited(giver, optimizer))

    def _absorb(self, pending: PendingHandover) -> bool:
        """Add a leaver's error feedback to this peer's, e ← e + theirs. Returns whether the optimizer's state is the
        leaver's from now on. Runs on the torch thread.

        The optimizer's state is taken where this peer's own has not taken as many steps as it remembers. Later the own
        one is as good: it knows the same stage at the same weights, and comes from nobody else.

        Raises:
            FormatError: the handover is not valid. Nothing is changed then.
        """
        outer, trainer = self.outer, self.trainer
        states = self._states()
        handed_over = unpack_state(pending.blob, list(states), outer.manifest, trainer.optimizer_shapes)
        sums = {
            part: added(state.error_feedback, handed_over.error_feedback[part], outer.manifest, part, outer.clock)
            for part, state in states.items()
        }
        for part, state in states.items():
            state.keep_error_feedback(sums[part])
        if not handed_over.optimizer or trainer.warmed_up:
            return False
        trainer.load_optimizer(handed_over.optimizer)
        outer.keep_optimizer(handed_over.optimizer)
        return True

    # The leaver's side

    async def hand_over(self, for_good: bool = False) -> None:
        """Give everything to a successor, now that this peer leaves, perhaps its stage `for_good`; without one it stays
        in this peer's folder."""
        self.close()
        await self.settle()
        empty = await self._thread.run(lambda: self._state_to_hand_over().empty)
        if self.handovers.successor or empty:
            return
        discovery = self.outer.discovery
        if not successors(
            discovery.others(), discovery.record, for_good
        ):  # one may have come since this peer last looked
            await discovery.read()
        for successor in successors(discovery.others(), discovery.record, for_good)[:SUCCESSORS_TRIED]:
            await self._set_aside(successor)
            if not await self._is_declined():
                return
        self._tell(f"nobody to hand error feedback and optimizer to: they stay in {self.outer.folder}")

    async def settle(self) -> None:
        """Offer once more what was set aside for a successor that has not answered, if anything was."""
        if self.handovers.successor:
            await self._is_declined()

    async def _set_aside(self, successor: PeerRecord) -> None:
        """Set everything aside for a successor; older checkpoints, in which it is still this peer's, go."""
        self.handovers.set_aside(
            successor.peer_id, await self._thread.run(lambda: pack_state(self._state_to_hand_over()))
        )
        for state in self._states().values():
            state.keep_error_feedback({name: torch.zeros_like(held) for name, held in state.error_feedback.items()})
        await self.outer.save({}, keep=1)

    async def _is_declined(self) -> bool:
        """Offer what is set aside; True: it is this peer's again. False: the successor has it, or may have it."""
        handovers, successor = self.handovers, PeerId(self.handovers.successor)
        record = next((peer for peer in self.outer.discovery.others() if peer.peer_id == successor), None)
        unknown = (
            f"peer {successor[-8:]} has not said whether it took over: what it was handed stays in {self.outer.folder}"
        )
        if record is None:
            self._tell(unknown)
            return False
        me = self.outer.discovery.record
        offer = HandoverOffer(me.peer_id, successor, handovers.given, me.stage, handovers.sha256, len(handovers.blob))
        try:
            reason = await offer_handover(offer, record, self.outer.reconciler)
        except HetpeerError as error:
            self._tell(f"{unknown} ({error})")
            return False
        if reason:
            for part, state in self._states().items():
                state.keep_error_feedback(await self._thread.run(returned, state.error_feedback, handovers.blob, part))
        handovers.settle()
        await self.outer.save({})
        if reason:
            self._tell(f"peer {successor[-8:]} takes nothing over: {reason}")
        else:
            self.outer.emit(HandedOver(successor))
        return bool(reason)

    def _state_to_hand_over(self) -> HandoverState:
        """Return all that this peer alone has. Runs on the torch thread."""
        error_feedback = {part: state.error_feedback for part, state in self._states().items()}
        return HandoverState(error_feedback, self.trainer.optimizer_tensors())

    def _states(self) -> dict[Part, OuterState]:
        """Return the outer states of the parts that this peer authors."""
        return {part: self.outer.followed.parts[part].state for part in parts_authored(self.trainer.index)}

    @property
    def _thread(self) -> TorchThread:
        return self.outer.followed.torch_thread

    def _tell(self, what: str) -> None:
        self.outer.emit(Progress(what))
