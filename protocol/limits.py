"""Every bound on what another peer can make us hold, wait for or do, each with its reason."""

from protocol.patience import CALL_SECONDS

CHUNK_BYTES = 256 * 1024
"""The size of one message of a blob, or of a frame's tensor: large enough for full speed over TLS, small enough not to
stall the loop (10 ms a MiB)."""

DESCRIPTOR_BYTES = 1024 * 1024
"""The size of a run's descriptor: the manifest (1 KiB) and a line for each file; 1024 stages take 150 KiB."""

SIGNED_BYTES = 24 * 1024
"""The size of a signed message. The longest is a statement: 145 bytes for the digests of each of up to 129 parts, and a
record."""

CARD_BYTES = 1024
"""The size of a card: 0.3 KiB, and 0.3 KiB of its gateway's. There is one level of gateways, and a card has room for no
more."""

SIGNATURES_OF_A_MESSAGE = 3
"""The signatures that reading a signed message takes at most: its own, its card's, and that of the gateway's card.
Those checked before take none."""

PROOF_BYTES = CARD_BYTES + 512
"""The size of a contribution's proof, or of a receipt for it: a card, and 0.4 KiB of names, digests and a signature."""

ADDRESSES_NAMED, ADDRESS_CHARACTERS = 3, 100
"""The addresses that a record names beside the first one, and the length of each: IPv4, IPv6, a VPN. A peer that looks
for another dials these and the first one, once each."""

ADDRESS_CHANGES, ADDRESS_CHANGE_SECONDS = 8, 10.0
"""The changes of a peer's addresses that others follow at once, and the time after which they follow one more: a laptop
that loses its Wi-Fi again and again. The calls to a peer that names new addresses faster fail, so that nobody is made
to dial a list of third parties."""

RECORD_BYTES = 4 * 1024
"""The size of a peer's signed record: 1.3 KiB of names and addresses, 1.2 KiB of scores, 0.6 KiB of relays, 0.2 KiB of
stages, its card and its gateway's, 0.6 KiB."""

HOLDERS_NAMED = 64
"""The records of holders in a node's word on its run, of 1 KiB each, 4 KiB at most: one for each stage, the newest
first."""

RECORDS_READ = 512
"""The records that are read of one key of the DHT at a time, where 64 are expected. A node holds no more under one key,
2 MiB."""

DHT_MESSAGE_BYTES = 512 * 1024
"""The size of a call to a node of the DHT, and of its answer: 512 records of the usual 0.8 KiB, or twice the 64 records
of a key if each were as long as one may be. libp2p's daemon sets aside as much for each call that it is sent."""

DHT_ANSWER_BYTES = DHT_MESSAGE_BYTES - 64 * 1024
"""The size of the records in an answer, beside which stand the neighbours of each key; of more records, a random choice
is sent."""

DHT_KEYS = 16
"""The keys that one call may ask for: hivemind asks for no more at once, our nodes for one."""

DHT_NEIGHBOURS = 20
"""The neighbours of a key in one answer: hivemind's bucket."""

DHT_NODES_KEPT = 2048
"""The entries of a node's routing table, 0.5 KiB each: more than there are nodes in a run's DHT. For one more, one
goes."""

DHT_NEW_NODE_COST = 8.0
"""The cost of a new node that introduces itself, in records checked: our table is searched, and another node may be
pinged."""

DHT_MEMBER_PER_SECOND = 32.0
DHT_MEMBER_SAVED = 1024.0
DHT_STRANGER_PER_SECOND = 8.0
DHT_STRANGER_SAVED = 128.0
DHT_STRANGERS_PER_SECOND = 64.0
DHT_STRANGERS_SAVED = 512.0
DHT_PER_SECOND = 256.0
DHT_SAVED = 2048.0
"""The allowances of calls and of checked records: of one peer of the run, of one stranger, of all strangers together,
and of everybody together. A record costs as many checks as it takes, three at most (`SIGNATURES_OF_A_MESSAGE`). A check
was measured at 127 µs; with 0.2 ms for each call or check, by arithmetic, strangers get 1.3 % of a core and everybody
together 5 %. A peer stores one record and asks for some keys every quarter of a minute; in a run of a thousand a node
is called ten times a second. A newcomer makes ten calls until its record is known: fifty newcomers may come at once,
and six a second."""

DHT_CALLS_AT_ONCE = 64
DHT_CALLS_OF_SOURCE = 8
"""The calls that a node answers at once, of all sources and of one: each may hold a message."""

DHT_ASKED_OF_PEER = 8
DHT_ASKED_SECONDS = 60.0
"""The calls of ours that another node may leave unanswered before it is asked no more, and the age at which an
unanswered call makes this node hang up on it."""

DHT_SILENT_SECONDS = 4.0
"""The age of an unanswered call to an operator's node, or another that was met by its address, at which a peer tries
whether the connection is dead: twice the time after which a node is passed over."""

DHT_REFUSED = 32
"""The refused calls of a source in a row after which this node hangs up on it. By arithmetic refusing one takes 0.1 ms,
if no more than a check; it was not measured."""

LIBP2P_BYTES = 256 * 1024**2
"""The memory that libp2p's daemon may hold; it has 64 MiB with twenty neighbours, and a relay's 128 streams hold 0.5
MiB each. From half of it on, the daemon frees what it need not keep. Beyond it, this node hangs up on strangers; if
that does not help, it starts the daemon anew."""

LIBP2P_MOST_BYTES = 512 * 1024**2
"""The memory beyond which the system gives the daemon none: the daemon dies, and is started anew."""

LIBP2P_GRACE_SECONDS = 20
"""The time for which a new connection is kept when the daemon has too many (512) and closes those that carry nothing.
"""

MESSAGE_SLACK_BYTES = 64 * 1024
"""The size of all that a message may hold beside its tensor and token ids, which are counted apart."""

STREAMS = 64
"""The calls at once on one connection: a peer fetches a few blobs at once from another, compares, tells, and carries a
pipeline. More calls wait their turn. Each may hold a message of `manifest.message_bytes` while it arrives."""

REGISTRATION_STREAMS = 8
REGISTRATION_MESSAGE_BYTES = CHUNK_BYTES + 16 * 1024
"""The calls at once on one connection to the registration port, where callers have no certificate: twice as many as
`hetpeer doctor` makes, each of at most a piece to measure with. A registration has 5 KiB."""

REGISTRATION_CONNECTIONS, REGISTRATION_CONNECTIONS_OF_SITE, REGISTRATION_CONNECTIONS_OF_ADDRESS = 64, 32, 16
"""The connections to the registration port at once: of all callers, of one /24 or /48, and of one IPv4 address or /64.
Each may hold 8 messages of 272 KiB that are half sent, and as much again in buffers and fragments at worst: 47 MiB from
one address, 245 MiB from two hundred, were measured."""

REGISTRATION_WAITING, REGISTRATION_WAITING_OF_ADDRESS = 1024, 256
"""The connections that wait to be let through to the registration port, of which 4 KiB are read: a lecture hall that
joins at once.
"""

REGISTRATION_TURN_SECONDS = 20.0
"""The longest wait at the registration port: the caller gives up after 30 seconds. A connection that has been inside
half as long makes way for one that waits."""

REGISTRATION_SECONDS = 120.0
"""The time for all that a newcomer asks on one connection. Measuring a slow link takes a minute."""

DESCRIPTORS_RESERVED = 256
"""The descriptors of a process that no connection from outside takes, or half of all if there are fewer than 512. A
peer has 60 open files and sockets of its own, and a connection to each peer that it calls; a process with 1,024 keeps
768 for connections."""

CHANNELS_KEPT = 128
"""The channels that a peer keeps to others for its next calls, one descriptor each. For one more, the one goes that has
not been used for the longest."""

PEERS_SHARE, REGISTRATION_SHARE, LIBP2P_SHARE = 1 / 2, 1 / 4, 1 / 4
"""The parts of the descriptors for connections that each port of a process may take. A peer has no registration
port."""

CONNECTIONS, CONNECTIONS_OF_PEER = 768, 16
"""The connections of certified peers to a peer's port at once, of all and of one peer: each has one for calls, one for
frames, and some that its last ones have not noticed to be dead. With 1,024 descriptors there are 48."""

CONNECTIONS_PENDING, CONNECTIONS_PENDING_OF_SITE, CONNECTIONS_PENDING_OF_ADDRESS = 48, 32, 16
"""The connections to a peer's port on which nobody has called yet, at once: of all callers, of one /24 or /48, and of
one IPv4 address or /64. Peers call as soon as TLS stands: within three round trips."""

CONNECTIONS_WAITING, CONNECTIONS_WAITING_OF_ADDRESS = 256, 128
"""The connections to a peer's port that have said nothing yet, or wait until there are fewer pending ones. Each holds a
descriptor and 4 KiB; a pending one holds three, and what TLS needs."""

LIBP2P_CONNECTIONS = 256
"""The connections to libp2p's daemon at once: it closes some by itself from 512 on."""

LIBP2P_HANDSHAKE_SECONDS = 20.0
"""The time after which a connection to libp2p's daemon has shaken hands: the daemon closes others after 15 seconds."""

CALLS_AT_ONCE = STREAMS
CALLS_PER_SECOND = 50.0
CALLS_SAVED = 2000.0
"""The allowance of one peer: two peers call each other some times a second; a peer that comes back after hours asks for
hundreds of blobs within seconds."""

CALLERS_KEPT = 4096
"""The callers whose allowances are kept: more peers than call one within minutes."""

PEERS_KEPT = 4096
"""The peers of which a peer keeps what it has heard, mostly 2 KiB each: four times as many as a large run has."""

PARTS_BESIDE_STAGES = 1
"""The parts beside the stages: the embedding. A message names each part of the run once at most."""

KEYS_NAMED = 2**16
"""The keys in one message, of all parts together: half of `message_bytes`. A thousand authors of three parts make
27,000 in nine open rounds. A peer that has more to name draws as many at random each time, so that all are named in the
end."""

ROUNDS_NAMED = 256
"""The rounds of a part in one comparison, the newest: the widest window that a manifest can have is of 101 open rounds.
"""

ENTRIES_NAMED = 64
"""The entries told, asked for or answered in one message: 1 KiB each with two receipts, and 0.8 MiB in all with 17 of
them."""

REVOCATIONS_NAMED = 1024
"""The revocations in one message, 0.2 KiB each. A peer that has more draws as many at random each time."""

KEYS_OF_A_CALL = 64
ENTRIES_OF_A_CALL = 16
"""The keys that are looked at, and the entries that are given, for the cost of one call: 0.1 ms. A signature to be
checked costs as much as a call, too."""

CHECK_SHARE = 1 / 4
"""The share of the loop's time that goes at most into checking what others have signed: a check takes 0.1 to 0.3 ms, so
there are a thousand a second at most. The sources of what waits take turns."""

KEYS_ASKED_OF_ONE, KEYS_ASKED = 4096, 2**17
KEYS_OF_FEW = 256
"""The keys that one source, and all sources, have named without showing an entry for them yet, half a KiB each: 2 MiB
and 64 MiB. When all places are taken, a source with fewer than `KEYS_OF_FEW` still gets one."""

ENTRIES_OF_ONE, ENTRIES_TAKEN = 512, 4096
ENTRIES_OF_FEW = 32
"""The entries that wait to be checked, or for their bytes, 4 KiB each: 2 MiB from one source and 16 MiB from all. A
source with few always gets a place."""

LEARNING_OF_ONE = 8
"""The messages of one source whose keys are being asked for: one comes a second, and each waits for what it names."""

SERVED_TO_ONE, SERVED = 32, 512
SERVED_TO_FEW = 2
"""The blobs on their way to one peer, and to all: each holds a file and a piece, 8 MiB and 128 MiB. A peer fetches four
contributions, two pieces of each of a few states and four blocks of text at a time, and may always fetch
`SERVED_TO_FEW`."""

SPOT_CHECKS_OF_ONE = 32
"""The spot checks that an observer does for one peer in a round, for each stage of a group. A stage asks about one
microbatch of its own, and one that each other stage doubts, every six seconds for at most three minutes each."""

SPOT_CHECKS_WAIT = 32
"""The spot checks that wait at an observer, one of a peer. Each holds a microbatch's token ids, and 8 KiB."""

SPOT_CHECK_SHARE, SPOT_CHECK_SAVED_SECONDS = 0.5, 60.0
"""The share of its time that an observer spends on spot checks, beside audits and evaluation, and what it may save."""

FLOOR_BYTES_PER_SECOND = 2000.0
"""The lowest rate at which a peer may give a blob: the lowest limit that a peer may set, 1 Mb/s, of which frames leave
an eighth (`protocol/net/bandwidth.py`), shared by eight transfers."""

STALL_SECONDS = CALL_SECONDS
"""The time by which a source may fall behind `FLOOR_BYTES_PER_SECOND`, whatever it gave before. The wait for a source
is at most this, and the blob's size at that rate; the turns of this peer's own limits are not counted."""

CERTIFICATE_SLACK_SECONDS = 3600.0
"""The time for which a stream goes on after the last certificate has ended that its caller has shown. A group ends its
round though no node renews; and a peer that has renewed, in the last third of a certificate's life, calls everybody
meanwhile."""

TLS_SECONDS = 10.0
"""The time for a TLS handshake, which takes three round trips."""

REVOCATIONS_KEPT = 2048
"""The revocations of a run that each peer keeps: all of them, of 0.3 KiB, go along with each piece of news."""

RELAYS_KEPT = 2
"""The relays by which a peer that cannot be dialled is reached, where there are as many: one may die."""

RELAYS_NAMED = 3
"""The relays that a record names at most."""

RELAY_GREETING_BYTES = 2048
"""The size of the greeting to a relay: a card with its gateway's, 0.6 KiB, and a peer's id."""

RELAY_OPEN_SECONDS = 4.0
"""The time to open a stream over a connection that is there, or a new connection: two or three round trips. A step
could not wait for a slower relay, and twice this must leave time to change over within ten seconds."""

RELAY_PING_SECONDS = 2.0
RELAY_SILENCE_SECONDS = 3.0
"""The interval at which a peer asks its relays whether they are there, and the time that it waits for the answer."""

RELAY_PEERS = 256
"""The peers that a relay holds: more than are behind routers in a run of a hundred volunteers."""

RELAY_STREAMS = 128
RELAY_STREAMS_OF_PAIR = 16
"""The streams that a relay carries at once, of all peers and of one pair. Two peers have one for calls each way, and
one for frames; each may hold 0.5 MiB on its way through. As many greetings may wait."""

RELAY_STREAMS_OF_PEER = 32
"""The streams that one peer may have opened: to some neighbours, and to the peers that it compares with. On a relay
that is full, the peer that has opened most loses its newest stream to one that has fewer, so that each name has one
place where there are as many."""

RELAY_GREETINGS_OF_PEER = 8
RELAY_GREETINGS_OF_STRANGERS = 96
"""The greetings that wait of one peer, and of all peers that have not shown a card yet: the rest is for the run's."""

REFUSAL_BYTES = 200
"""The size of the reason why a stream is refused; what is longer is cut."""

REFUSAL_SECONDS = 4.0
"""The time that a refused peer has to read the reason and hang up: a round trip, over a slow relay."""

REFUSALS = 64
"""The refused streams that may wait for that at once; of more, a few lose the reason."""

RELAY_BYTES_PER_SECOND = 32e6
RELAY_BYTES_SAVED = 512e6
"""The rate, and the burst, at which two peers may send each other bytes through a relay, both ways together: twice a
home link of 100 Mb/s, and a snapshot at once. Beyond it they are slowed down, not cut off."""

RELAY_PAIRS_KEPT = 4096
"""The pairs of peers whose budgets a relay remembers."""

RELAY_IDLE_SECONDS = 60.0
RELAY_STREAM_SECONDS = 12 * 3600.0
"""The silence after which a relay ends a stream, on which gRPC says something every ten seconds, and the longest life
of a stream: it is opened anew once in half a day, as a certificate is."""

RELAY_POLL_SECONDS = 5.0
"""The interval at which a relay looks whether a stream may still go on."""

TUNNELS = 64
TUNNELS_OF_PEER = 16
"""The streams that a peer which cannot be dialled takes at once, and those from one public peer; a relay may bring them
all."""

CLOCK_SLACK_SECONDS = 60.0
"""The time by which a peer's clock may be ahead: a record from a clock that is twice as far ahead is refused."""
