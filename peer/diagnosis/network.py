"""The measurements of the network, in words: the ways to the run's nodes and to some peers, the clock, and whether
others can dial this machine. Pure."""

from collections.abc import Sequence

from peer.diagnosis.finding import SET_THE_CLOCK, Finding, Outcome
from peer.network.reach.probing import Handshake, MeasuredWay, NoWay, usual_round_trip
from peer.network.reach.reach import Reach
from peer.planning.model import Volunteer
from protocol.limits import CLOCK_SLACK_SECONDS
from protocol.wording import lasting, rate

CLOCK_SECONDS = 2.0
"""The seconds by which a clock may be off: one that is set from the network is nearer."""

WRONG_SECONDS = CLOCK_SLACK_SECONDS / 2
"""The seconds by which a clock is wrong enough to be a failure. For a part of the time others do not see such a peer:
its records have expired when they arrive, or are not believed yet."""

NEAR_ROUND_TRIP_SECONDS = 0.005
"""The round trip in seconds up to which it does not matter that TCP takes some more of them after a pause."""


def node_answers(node: MeasuredWay | NoWay) -> bool:
    """Whether a node answers, if only to refuse."""
    return isinstance(node, MeasuredWay) or node.answers


def node_findings(measured: Sequence[MeasuredWay | NoWay]) -> list[Finding]:
    """The findings on the nodes of the ticket, one for each. A node that does not answer is a failure if none does."""
    lost: Outcome = "warning" if any(node_answers(way) for way in measured) else "failure"
    findings = []
    for way in measured:
        name = f"node {way.address}"
        if isinstance(way, NoWay) and way.answers:
            findings.append(
                Finding(name, way.reason, "warning", "Others measure as well: run this again in two minutes")
            )
            continue
        if isinstance(way, NoWay):
            port = way.address.rpartition(":")[2]
            advice = (
                f"If others reach it, let this machine call its TCP port {port} and the two after it (firewall, VPN, "
                "proxy); else ask the operator whether it is up, or for a new ticket"
            )
            findings.append(Finding(name, way.reason, lost, advice))
            continue
        value = f"{lasting(way.round_trip)} there and back; {rate(way.up)} up, {rate(way.down)} down"
        numbers = {"round_trip": way.round_trip, "up": way.up, "down": way.down}
        findings.append(Finding(name, value, numbers=numbers))
    return findings


def clocks(measured: Sequence[MeasuredWay | NoWay]) -> Finding | None:
    """The finding on this machine's clock, against that of the node with the shortest round trip, which is the least
    uncertain; None where no node answers."""
    ways_measured = [way for way in measured if isinstance(way, MeasuredWay)]
    if not ways_measured:
        return None
    nearest = min(ways_measured, key=lambda way: way.uncertain)
    off = abs(nearest.ahead)
    side = "ahead of" if nearest.ahead > 0 else "behind"
    value = f"{lasting(off)} {side} the node's, to within {lasting(nearest.uncertain)}"
    numbers = {"ahead": nearest.ahead, "uncertain": nearest.uncertain}
    if off - nearest.uncertain <= CLOCK_SECONDS:
        return Finding("clock", value, numbers=numbers)
    wrong = off - nearest.uncertain > WRONG_SECONDS
    advice = f"{SET_THE_CLOCK}; if this one is right, tell the operator that the node's is not"
    return Finding("clock", value, "failure" if wrong else "warning", advice, numbers)


def peers_finding(shaken: Sequence[Handshake | NoWay], known: int) -> Finding:
    """The finding on peers: of the `known` ones in the run, some were dialled, and `shaken` has their TLS
    handshakes."""
    answering = [answered for answered in shaken if isinstance(answered, Handshake)]
    trip = usual_round_trip(shaken)
    if not known:
        return Finding("peers", "nobody is in the run now")
    if not shaken:
        return Finding("peers", f"all {known} are behind relays: how far away they are shows only from within")
    if trip is None:
        advice = (
            "Let this machine call any TCP port (firewall, VPN, proxy): peers listen on ports of their own; or all of "
            "them are behind routers, and come to you: then be reachable"
        )
        return Finding("peers", f"none of {len(shaken)}, of {known}, takes a connection", "warning", advice)
    trips, quickest = [answered.round_trip for answered in answering], min(answered.tls for answered in answering)
    value = (
        f"{len(answering)} of {len(shaken)} asked answer, of {known} in all: {lasting(min(trips))} to "
        f"{lasting(max(trips))} there and back, TLS in {lasting(quickest)}; what they carry shows only from within"
    )
    return Finding("peers", value, numbers={"round_trip": trip, "answer": len(answering), "known": known})


def unknown_peers(reason: str) -> Finding:
    """The finding where nobody can say who is in the run, though a node answers."""
    advice = "Let this machine call the port after the node's, which is libp2p's (firewall, VPN, proxy)"
    return Finding("peers", f"cannot tell who is in the run: {reason}", "warning", advice)


def slow_start(measured: Sequence[MeasuredWay | NoWay], begins_slowly: bool | None) -> Finding | None:
    """The finding on whether TCP probes a path's capacity anew after each pause, as there are between the frames of a
    pipeline (`docs/benchmarks.md` has the cost); None where it makes no difference, or nobody knows."""
    far = any(isinstance(way, MeasuredWay) and way.round_trip > NEAR_ROUND_TRIP_SECONDS for way in measured)
    if not far or begins_slowly is None:
        return None
    if begins_slowly:
        advice = "For quicker frames, as root: `sysctl -w net.ipv4.tcp_slow_start_after_idle=0`; it is no must"
        return Finding("TCP", "begins slowly again after each pause", "warning", advice)
    return Finding("TCP", "keeps its speed over pauses")


def reachable(found: Reach) -> Finding:
    """The finding on whether others can dial this machine, as a node has tried it."""
    if found.objection:
        value = "others cannot dial this machine: they would reach it by relays, which takes longer"
        return Finding("reachable", value, "warning", found.objection)
    if found.doubt:
        advice = "Run this again when a node answers; until then look at the router: is the port of --listen forwarded?"
        return Finding("reachable", found.doubt, "warning", advice)
    return Finding("reachable", f"others can dial this machine at {found.announced[0]}")


def link_of(measured: Sequence[MeasuredWay | NoWay], shaken: Sequence[Handshake | NoWay]) -> Volunteer | None:
    """This machine's link as the plan takes it; None where no node answers. Rates are those of the best way to a node,
    since this machine's own line carries no less; latency is half of the usual round trip to a peer, or to a node where
    no peer answers. Work is counted in seconds, so `operations` are 1."""
    ways_measured = [way for way in measured if isinstance(way, MeasuredWay)]
    if not ways_measured:
        return None
    trip = usual_round_trip(shaken) or min(way.round_trip for way in ways_measured)
    return Volunteer(1.0, max(way.up for way in ways_measured), max(way.down for way in ways_measured), trip / 2)
