"""What must be true when a schedule is over."""

from __future__ import annotations

from protocol.identity import ContributionName, PeerId
from tests.simulation.arithmetic import ZERO, Vector, add, digest, subtract, term
from tests.simulation.peer import PART, Peer
from tests.simulation.schedule import Schedule
from tests.simulation.world import World


def run(schedule: Schedule) -> list[str]:
    """What is wrong after a schedule: nothing, or sentences."""
    world = World(schedule)
    world.run()
    return verdict(world)


def verdict(world: World) -> list[str]:
    """All properties, over the honest peers that live at the end."""
    peers = [world.peers[me] for me in world.schedule.honest() if world.peers[me].alive]
    wrong = [problem for peer in peers for problem in _alone(world, peer)] + _together(peers)
    if world.schedule.calm and not world.mute:  # one that comes back with such a receipt is as good as one liar more
        wrong += _in_synchrony(world, peers)
    return wrong


def _together(peers: list[Peer]) -> list[str]:
    """One state."""
    wrong = []
    one = peers[0]
    rounds = range(one.ledger.folded + 1, one.ledger.clock + 1)
    for other in peers[1:]:
        pair = f"{one.me} and {other.me}"
        if (one.ledger.clock, one.ledger.folded) != (other.ledger.clock, other.ledger.folded):
            wrong.append(f"{pair} are in different rounds: {one.ledger.clock} and {other.ledger.clock}")
        if _digest(one) != _digest(other):
            wrong.append(f"{pair} have folded different states")
        differ = [round for round in rounds if one.ledger.chosen(round) != other.ledger.chosen(round)]
        if differ:
            wrong.append(f"{pair} have chosen differently in rounds {differ}")
        if one.state.theta != other.state.theta:
            wrong.append(f"{pair} have different θ: {one.state.theta} and {other.state.theta}")
    return wrong


def _alone(world: World, peer: Peer) -> list[str]:
    """θ is the plain sum over what counts, and no work is lost or counts twice."""
    wrong = []
    if not peer.up:
        return [f"{peer.me} never took part again"]
    theta, own = ZERO, ZERO
    for round in range(1, peer.ledger.clock + 1):
        counted = _counted(world, peer, round)
        theta = subtract(theta, term(list(counted.values())))
        own = add(own, counted.get(peer.me, ZERO))
    if theta != peer.state.theta:
        wrong.append(f"{peer.me}: θ is {peer.state.theta}, and the sum over what counts {theta}")
    open_rounds = [round for round in peer.authored.sent if round > peer.ledger.folded]
    pending = [round for round in open_rounds if peer.me not in peer.ledger.chosen(round)]
    for round in pending:
        own = add(own, peer.disk.value(round))
    if peer.me not in world.wiped and add(own, peer.state.residual) != peer.state.computed:
        wrong.append(f"{peer.me}: computed {peer.state.computed}, counted {own} and left {peer.state.residual}")
    return wrong


def _in_synchrony(world: World, peers: list[Peer]) -> list[str]:
    """What holds besides where every message takes less than SKEW rounds."""
    wrong = []
    for peer in peers:
        if peer.late:
            continue
        if peer.resyncs:
            wrong.append(f"{peer.me} was always there, and resynchronised {peer.resyncs} times")
        missing = [round for round in peer.authored.sent if not _counts(peer, peer.me, round)]
        missing += list(peer.authored.returned)
        if missing and not any(each.author == peer.me for each in peer.ledger.revocations):
            wrong.append(f"{peer.me}: its contributions of rounds {missing} do not count")
        for revocation in peer.ledger.revocations:
            start, author = revocation.effective(peer.window), revocation.author
            if any(_counts(peer, author, round) for round in range(start, peer.ledger.clock + 1)):
                wrong.append(f"{peer.me}: {author} counts after round {start}, when it was revoked")
        always = {each.me for each in peers if not each.late}
        void = [name for name, by in world.seen.items() if sum(bool(always & whom) for whom in by.values()) > 1]
        counting = [str(name) for name in void if _counts(peer, name.author, name.round)]
        if counting:
            wrong.append(f"{peer.me}: {counting} have two versions and count")
    return wrong


def _digest(peer: Peer) -> str:
    return digest(peer.state.folded, peer.ledger.history)


def _counts(peer: Peer, author: PeerId, round: int) -> bool:
    return peer.ledger.history.has(author, round) or author in peer.ledger.chosen(round)


def _counted(world: World, peer: Peer, round: int) -> dict[PeerId, Vector]:
    """Author → what counts of a round."""
    if round > peer.ledger.folded:
        chosen = peer.ledger.chosen(round)
    else:
        authors = [author for author in world.schedule.roles if peer.ledger.history.has(author, round)]
        chosen = {author: peer.state.closed[round][author] for author in authors}
    return {author: world.made[ContributionName(PART, round, author)][sha256] for author, sha256 in chosen.items()}
