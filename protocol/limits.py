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
"""Of one key of the DHT at a time, where 64 are expected; a node holds no more under one, either, 2 MiB."""

DHT_MESSAGE_BYTES = 512 * 1024
"""A call to a node of the DHT, or its answer: 512 records of the usual 0.8 KiB, or twice the 64 of a key if each were
as long as one may be. libp2p's daemon sets aside so much for each call that it is sent."""

DHT_ANSWER_BYTES = DHT_MESSAGE_BYTES - 64 * 1024
"""Records in an answer, beside which are the neighbours of each key; of more, any."""

DHT_KEYS = 16
"""Asked for in one call: hivemind asks for no more at once, our nodes for one."""

DHT_NEIGHBOURS = 20
"""Of a key, in one answer: hivemind's bucket."""

DHT_NODES_KEPT = 2048
"""In a node's routing table: more than are in a run's DHT, 0.5 KiB each. For another one, one goes."""

DHT_NEW_NODE_COST = 8.0
"""What it costs to be met as a new node, in records checked: our table is searched, and another may be pinged."""

DHT_MEMBER_PER_SECOND = 32.0
DHT_MEMBER_SAVED = 1024.0
DHT_STRANGER_PER_SECOND = 8.0
DHT_STRANGER_SAVED = 128.0
DHT_STRANGERS_PER_SECOND = 64.0
DHT_STRANGERS_SAVED = 512.0
DHT_PER_SECOND = 256.0
DHT_SAVED = 2048.0
"""Calls, and records that are checked, of one peer of the run, of one who is none, of all those, and of all. A check
was measured at 127 µs; with 0.2 ms for each of either, by arithmetic, strangers get 1.3 % of a core and everybody
together 5 %. A peer stores one record and asks for some keys every quarter of a minute; in a run of a thousand a node
is called ten times a second. A newcomer makes ten calls until its record is known: fifty may come at once, and six a
second."""

DHT_CALLS_AT_ONCE = 64
DHT_CALLS_OF_SOURCE = 8
"""That are being answered: each may hold a message."""

DHT_ASKED_OF_PEER = 8
DHT_ASKED_SECONDS = 60.0
"""Calls of ours that another node has not answered: beyond, it is not asked, and after a minute it is hung up on."""

DHT_REFUSED = 32
"""Calls of a source in a row: who still goes on is hung up on. By arithmetic refusing one takes
0.1 ms, if no more than a check; it was not measured."""

LIBP2P_BYTES = 256 * 1024**2
"""What libp2p's daemon may hold; it has 64 MiB with twenty neighbours, and a relay's 128 streams hold 0.5 MiB each. It
frees what it need not keep from half of that on. Beyond, strangers are hung up on; if that does not help, it is started
anew."""

LIBP2P_MOST_BYTES = 512 * 1024**2
"""Here the system refuses it more: it dies, and is started anew."""

LIBP2P_GRACE_SECONDS = 20
"""So long a new connection is kept when the daemon has too many (512), and closes those that carry nothing."""

MESSAGE_SLACK_BYTES = 64 * 1024
"""What a message may hold beside its tensor: token ids are counted apart."""

CALL_SECONDS = 30.0
"""A small question to a peer that is alive."""

STREAMS = 64
"""Calls at once on one connection: a peer fetches a few blobs at once from another, compares, tells, and carries a
pipeline. More of them wait their turn. Each may hold a message of `message_bytes` while it arrives."""

DOOR_STREAMS = 8
DOOR_MESSAGE_BYTES = CHUNK_BYTES + 16 * 1024
"""At the door, where callers have no certificate: calls at once on a connection, twice as many as `hetpeer doctor`
makes, each of at most a piece to measure with. A registration has 5 KiB."""

DOOR_CONNECTIONS, DOOR_CONNECTIONS_OF_NETWORK = 64, 16
"""At once. Each may hold 8 messages of 272 KiB that are half sent, and as much again in buffers and fragments at worst:
47 MiB from one network, 245 MiB from two hundred, were measured."""

DOOR_WAITING, DOOR_WAITING_OF_NETWORK = 1024, 256
"""Connections that wait to be let through to the door, of which nothing is read: a lecture hall that joins at once."""

DOOR_TURN_SECONDS = 20.0
"""So long one waits at most: its caller gives up after 30. Who has been inside half as long makes way for who waits."""

DOOR_SECONDS = 120.0
"""For all that a newcomer asks on one connection. Measuring a slow link takes a minute."""

CALLS_AT_ONCE = STREAMS
CALLS_PER_SECOND = 50.0
CALLS_SAVED = 2000.0
"""What one peer may ask for: two peers call each other some times a second; one that comes back after hours asks for
hundreds of blobs within seconds."""

CALLERS_KEPT = 4096
"""Whose allowances are kept: more peers than call one within minutes."""

PEERS_KEPT = 4096
"""Of so many others a peer keeps what it has heard of each, 2 KiB mostly: four times as many as a large run has."""

PARTS_BESIDE_STAGES = 1
"""The embedding: a message names each part of the run once at most."""

KEYS_NAMED = 2**16
"""In one message, of all parts together: half of `message_bytes`. A thousand authors of three parts make 27,000 in nine
open rounds. Who has more to name draws so many at random each time, so that all are named in the end."""

ROUNDS_NAMED = 256
"""Of a part in one comparison, the newest: the widest window that a manifest can have is of 101 open rounds."""

ENTRIES_NAMED = 64
"""Told, asked for or answered in one message: 1 KiB each with two receipts, and 0.8 MiB in all with 17 of them."""

REVOCATIONS_NAMED = 1024
"""In one message, 0.2 KiB each. Who has more draws so many at random each time."""

KEYS_OF_A_CALL = 64
ENTRIES_OF_A_CALL = 16
"""Keys that are looked at, and entries that are given, for what one call costs: 0.1 ms. A signature to be checked
costs as much as a call, too."""

CHECK_SHARE = 1 / 4
"""Of the loop's time, at most this goes into what others have signed: a check takes 0.1 to 0.3 ms, so a thousand a
second at most; and whoever has sent what waits, gets turns one after the other."""

KEYS_ASKED_OF_ONE, KEYS_ASKED = 4096, 2**17
KEYS_OF_FEW = 256
"""Keys that one source has named and not yet shown an entry for, and of all sources, half a KiB each: 2 MiB and 64
MiB. Of the places of all, who has fewer than `KEYS_OF_FEW` always gets one."""

ENTRIES_OF_ONE, ENTRIES_TAKEN = 512, 4096
ENTRIES_OF_FEW = 32
"""Entries that wait to be checked or for their bytes, 4 KiB each: 2 MiB from one source and 16 MiB from all, of which
who has few always gets some."""

LEARNING_OF_ONE = 8
"""Messages of one source whose keys are being asked for: one comes a second, and each waits for what it names."""

SERVED_TO_ONE, SERVED = 32, 512
SERVED_TO_FEW = 2
"""Blobs on their way to one peer, and to all: each holds a file and a piece, 8 MiB and 128 MiB. A peer fetches four
contributions, two pieces of each of a few states and four blocks of text at a time; and `SERVED_TO_FEW` always."""

FLOOR_BYTES_PER_SECOND = 2000.0
"""Slower than this nobody gives a blob: the lowest limit that a peer may set, 1 Mb/s, of which frames leave an eighth
(`protocol/net/bandwidth.py`), shared by eight transfers."""

STALL_SECONDS = CALL_SECONDS
"""So far a source may fall behind `FLOOR_BYTES_PER_SECOND`, whatever it gave before. A blob takes at most this, and its
size at that rate, of waiting for its source; this peer's own turns of its limits are not counted."""

CERTIFICATE_SLACK_SECONDS = 3600.0
"""A stream goes on so long after the last certificate has ended that its caller has shown. A group ends its round
though no node renews; and who has renewed, in the last third of a certificate's life, calls everybody meanwhile."""

TLS_SECONDS = 10.0
"""A handshake takes three round trips; who needs longer is not talking to us."""

REVOCATIONS_KEPT = 2048
"""Of a run, by each peer: all of them, of 0.3 KiB, go along with each piece of news."""

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

RELAY_STREAMS_OF_PEER = 32
"""That one peer has opened: to some neighbours, and to those it compares with. Of a relay that is full, who has opened
most loses its newest to who has fewer, so that each name has one place where there are as many."""

RELAY_GREETINGS_OF_PEER = 8
RELAY_GREETINGS_OF_STRANGERS = 96
"""Greetings that wait of one peer, and of all who have not shown a card yet: the rest is for the run's."""

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
