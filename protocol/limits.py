"""Every bound on what another peer can make us hold, wait for or do, each with its reason."""

from protocol.manifest import Manifest

CHUNK_BYTES = 256 * 1024
"""One message of a blob, or of a frame's tensor: large enough for full speed over TLS, small enough not to stall the
loop (10 ms a MiB)."""

DESCRIPTOR_BYTES = 1024 * 1024
"""A run's descriptor: the manifest (1 KiB) and a line for each file; 1024 stages take 150 KiB."""

SIGNED_BYTES = 24 * 1024
"""A signed message. The longest is a statement: 145 bytes for the digests of each of up to 129 parts, and a record."""

RECORD_BYTES = 4 * 1024
"""A peer's signed record: 1 KiB of names and addresses, 1.2 KiB of scores, 0.6 KiB of relays, its card and its
gateway's, 0.6 KiB."""

RECORDS_READ = 512
"""Of one key of the DHT at a time, where 64 are expected. Their holder sends all in one message, and a message of
libp2p's has 4 MiB at most, which is twice as many."""

MESSAGE_SLACK_BYTES = 64 * 1024
"""What a message may hold beside its tensor: token ids are counted apart."""

CALL_SECONDS = 30.0
"""A small question to a peer that is alive."""

STREAMS = 64
"""Calls at once on one connection: a peer fetches a few blobs at once from another, compares, tells, and carries a
pipeline. More of them wait their turn. Each may hold a message of `message_bytes` while it arrives."""

CALLS_AT_ONCE = STREAMS
CALLS_PER_SECOND = 50.0
CALLS_SAVED = 2000.0
"""What one peer may ask for: two peers call each other some times a second; one that comes back after hours asks for
hundreds of blobs within seconds."""

CALLERS_KEPT = 4096
"""Whose allowances are kept: more peers than call one within minutes."""

TLS_SECONDS = 10.0
"""A handshake takes three round trips; who needs longer is not talking to us."""

RELAYS_KEPT = 2
"""By so many relays a peer that cannot be dialled is reached, where there are as many: one may die."""

RELAYS_NAMED = 3
"""In a record, at most."""

RELAY_GREETING_BYTES = 2048
"""What a relay is told first: a card with its gateway's, 0.6 KiB, and a peer's id."""

RELAY_OPEN_SECONDS = 4.0
"""For a stream over a connection that is there, or a new connection: two or three round trips. Who needs longer is no
relay that a step could wait for, and twice as long must leave time to change over within ten seconds."""

RELAY_PING_SECONDS = 2.0
RELAY_SILENCE_SECONDS = 3.0
"""A peer asks its relays this often whether they are there, and waits so long for the answer."""

RELAY_PEERS = 256
"""A relay holds so many peers, more than are behind routers in a run of a hundred volunteers."""

RELAY_STREAMS = 128
RELAY_STREAMS_OF_PAIR = 16
"""At once. Two peers have one for calls each way, one for orders and one for frames; each may hold 0.5 MiB on its way
through. As many greetings may wait."""

RELAY_BYTES_PER_SECOND = 32e6
RELAY_BYTES_SAVED = 512e6
"""What two peers may send each other through a relay, both ways together: twice a home link of 100 Mb/s, and a snapshot
at once. Who goes beyond is slowed down, not cut off."""

RELAY_PAIRS_KEPT = 4096
"""Whose budgets are remembered."""

RELAY_IDLE_SECONDS = 60.0
RELAY_STREAM_SECONDS = 12 * 3600.0
"""gRPC says something every ten seconds; and a stream is opened anew once in half a day, as a certificate is."""

RELAY_LOOK_SECONDS = 5.0
"""So often a relay looks whether a stream may still go on."""

TUNNELS = 64
TUNNELS_OF_PEER = 16
"""Streams that a peer which cannot be dialled takes at once, and from one public peer; a relay may bring them all."""

LEASE_SECONDS = 60.0
"""How long an accepted invitation keeps a member from other groups while its leader looks for the rest."""

RECORD_SECONDS = 60.0
"""How long a peer's record lives in the DHT unless it is renewed."""

CLOCK_SLACK_SECONDS = 60.0
"""So far ahead a peer's clock may be, and not twice as far: a record that would live longer is refused."""

HEARTBEAT_SECONDS = 15.0
"""How often a record is renewed: it survives three lost renewals."""


def message_bytes(manifest: Manifest | None) -> int:
    """The largest message of any service of a run: a piece of a frame's tensor with a microbatch's token ids and slack,
    or a descriptor."""
    tokens = manifest.inner.microbatch * (manifest.model.context + 1) if manifest else 0
    return max(CHUNK_BYTES + 4 * tokens + MESSAGE_SLACK_BYTES, DESCRIPTOR_BYTES)
