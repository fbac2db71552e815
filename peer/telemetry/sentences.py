"""What a person is told: an event as a line worth keeping, and sizes in words."""

from datetime import datetime
from typing import Literal

from peer.telemetry.decisions import (
    Adopted,
    Avoided,
    CaughtUp,
    Counted,
    Dismissed,
    EndedEarly,
    Left,
    NotCounted,
    Placed,
    Pulse,
    Recalled,
    WentOn,
)
from peer.telemetry.events import (
    Audited,
    CertificateRenewed,
    CompressionChosen,
    Credited,
    Evaluated,
    Event,
    Failed,
    Finished,
    GroupBroken,
    GroupFormed,
    HandedOver,
    Inherited,
    Injected,
    Joined,
    Paused,
    PauseEnded,
    Progress,
    Reached,
    Refused,
    Resumed,
    Resynchronised,
    RoundDone,
    Serving,
    StepDone,
    Suspected,
    Tried,
)


def size(count: float) -> str:
    """Bytes in words."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def so_many(count: int, what: str) -> str:
    """A number of things: "1 peer", "2 peers"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def level(event: Event) -> Literal["debug", "info", "warning", "error"]:
    """How much it matters to who looks after a daemon."""
    match event:
        case Failed():
            return "error"
        case Refused() | GroupBroken() | Resynchronised() | Suspected() | Avoided() | Dismissed() | NotCounted():
            return "warning"
        case Progress(doing) if doing.startswith("WARNING"):
            return "warning"
        case Adopted(attested=False):
            return "warning"
        case EndedEarly() | WentOn() | Reached([]):
            return "warning"
        case StepDone() | Pulse():
            return "debug"
        case Progress(_, _, total) if total:
            return "debug"
    return "info"


def reason(event: Event) -> str:
    """Why it came to this, as the event has it; empty: it says nothing of that."""
    match event:
        case CompressionChosen(_, why):
            return why
        case Failed(message):
            return message
        case Tried(_, _, _, objection):
            return objection
        case Resynchronised(part, attested=True):
            return f"the operator attests another state of {part}"
        case Resynchronised(part):
            return f"most peers had another state of {part}"
        case HandedOver():
            return "this peer leaves, and another of its stage takes its place"
        case Inherited():
            return "a peer of this stage leaves"
    return str(getattr(event, "reason", ""))


def say(event: Event) -> str | None:
    """An event as a line worth keeping; None for what only passes by."""
    match event:
        case Serving(ticket, run_id, dashboard):
            seen = f"The dashboard: {dashboard}\n" if dashboard else ""
            return (
                f"Serving run {run_id[:12]}. The ticket, one line, for everybody who joins:\n\n{ticket}\n\n"
                f"{seen}Ctrl-C stops this node."
            )
        case Progress(doing, 0, 0):
            return doing[0].upper() + doing[1:]
        case Joined(role="lab"):
            return None  # there is nobody to join
        case Joined(peer_id, role, stage, slot, address):
            where = f" of stage {stage}" if role == "volunteer" else ""
            return f"Joined as {role}{where} (slot {slot}): peer {peer_id[-8:]} at {address}"
        case Reached([]):
            return "WARNING: no relay holds this peer, and it cannot be dialled: others cannot call it."
        case Reached(relays):
            return f"Others reach this peer by {len(relays)} relay(s): {', '.join(each[-8:] for each in relays)}"
        case Placed(reason=reason):
            return f"Why here: {reason}."
        case GroupFormed(replica, _, members, reason):
            names = ", ".join(each[-8:] for each in members)
            return f"In the group of {replica[-8:]}, {len(members)} stages: {names}" + (f"; {reason}" if reason else "")
        case GroupBroken(_, round, step, reason):
            lost = f"Step {step + 1} of round {round} is rolled back" if round else "No step was in flight"
            return f"{reason[:1].upper()}{reason[1:]}. {lost}; looking for another member."
        case Left(replica, reason):
            return f"Leaving {f'the group of {replica[-8:]}' if replica else 'the swarm'}: {reason}."
        case Dismissed(peer, round, step, reason):
            when = f", at step {step + 1} of round {round}" if round else ""
            return f"Dismissed peer {peer[-8:]} from this group{when}: {reason}"
        case Avoided(peer, None, reason):
            return f"Peer {peer[-8:]} is avoided for good: {reason}"
        case Avoided(peer, seconds, reason):
            return f"Peer {peer[-8:]} is avoided for {seconds:.0f} s: {reason}"
        case EndedEarly(round, steps, reason):
            return f"Ended round {round} early, after {so_many(steps, 'inner step')}: {reason}."
        case WentOn(round, without, reason):
            return f"Waiting no longer in round {round} for {', '.join(each[-8:] for each in without)}: {reason}."
        case NotCounted(round, parts, reason):
            return f"Nothing of this peer counts in round {round} ({', '.join(parts)}): {reason}."
        case Adopted(round, peers, True, since):
            seen = f" (it has seen the run itself from round {since + 1} on)" if since else ""
            return f"Began with the state after round {round}, which the operator's observer attests{seen}."
        case Adopted(round, peers):
            past = "Nobody whom the operator trusts has seen this run's past"
            return f"{past}: the state after round {round} is the word of {so_many(peers, 'peer')}."
        case CaughtUp(round):
            return f"Caught up with the others: took from them what counted up to round {round}."
        case Counted(round, parts):
            return f"This peer's contribution to round {round} counts after all ({', '.join(parts)})."
        case CompressionChosen(_, why):
            return f"{why[0].upper()}{why[1:]}."
        case Credited(round, tokens, signers, counted):
            by = f"signed by {so_many(len(signers), 'peer')}"
            if counted and not tokens:
                return f"Credit for round {round}: its contribution counts, {by}."
            counts = "; its contribution counts" if counted else ""
            return f"Credit for round {round}: {tokens:,} tokens, {by}{counts}."
        case Recalled(rounds, older, recent):
            tokens = older + sum(tokens for _, tokens in recent)
            return f"Credit until now: {tokens:,} tokens in {so_many(rounds, 'round')}."
        case Resumed(round):
            return f"Resumed after round {round}, from this peer's own folder."
        case Paused(reason):
            return f"Paused {reason}."
        case PauseEnded():
            return "The pause is over: going on."
        case Resynchronised(part, round, returned, attested):
            own = f" {returned} of our contributions went back into the error feedback." if returned else ""
            whose = "the one that the operator attests; took that" if attested else "that of most peers; took theirs"
            return f"WARNING: our state of {part} was not {whose}, of round {round}.{own}"
        case HandedOver(heir):
            return f"Handed over to peer {heir[-8:]}: error feedback and optimizer."
        case Inherited(giver, optimizer):
            return f"Took over from peer {giver[-8:]}: error feedback" + (" and optimizer." if optimizer else ".")
        case CertificateRenewed(ends):
            return f"This peer's certificate was renewed; it lasts until {datetime.fromtimestamp(ends):%Y-%m-%d %H:%M}."
        case Refused(peer, reason):
            return f"Refused what peer {peer[-8:]} sent: {reason}"
        case RoundDone():
            sets = ", ".join(f"{part} {count}" for part, count in event.contributions.items())
            sent = f"{size(event.pipeline_sent)} in the pipeline, {size(event.outer_sent)} in contributions"
            return f"Round {event.round} done in {event.seconds:.1f} s; contributions: {sets}; sent so far: {sent}"
        case Evaluated(round, loss, plain):
            return f"Held-out loss after round {round}: {loss:.3f} through the boundaries, {plain:.3f} plain"
        case Audited(round, gains):
            each = ", ".join(f"{peer[-8:]} {gain:+.4f}" for peer, gain in sorted(gains.items(), key=lambda one: one[1]))
            return f"Audit of round {round}, gains in nats: {each}"
        case Tried(round, peer, gain, objection):
            verdict = f"not yet: {objection}" if objection else "they count from now on"
            return f"Trial of peer {peer[-8:]}'s contributions: round {round} would gain {gain:+.4f} nats; {verdict}"
        case Suspected(peer, reason):
            return f"WARNING: peer {peer[-8:]} is suspected: {reason}"
        case Finished(rounds):
            return f"Finished: {rounds} rounds."
        case Failed(message, _):
            return f"hetpeer: {message}"
        case Injected(_, _, action, processes, begins, reason):
            whom = "; ".join(processes)
            if begins and reason:
                return f"{action} {reason}"
            return f"{action} {whom}".rstrip() + (f": {reason}" if reason else "")
        case _:
            return None
