"""The waits for other peers: how long, for whom, and why so long. `protocol/limits.py` has what one peer may
cost another; `outer.patience` in a manifest says how long rounds wait for slow replicas."""

# Heartbeats: who is there

HEARTBEAT_SECONDS = 15.0
"""The interval at which a record is renewed: it survives three lost renewals."""

RECORD_SECONDS = 60.0
"""The life of a peer's record in the DHT unless it is renewed."""

COMPARISON_TIMEOUT_SECONDS = 3.0
"""The time within which a peer has to answer a comparison, which is also its heartbeat."""

CALL_SECONDS = 30.0
"""The time within which a peer that is alive answers a small question."""

LOST_PEER_SECONDS = 3 * HEARTBEAT_SECONDS
"""The silence after which a peer is lost, dead or cut off, in seconds: its record would have been renewed three
times."""

CUT_STREAM_SECONDS = 4.0
"""The seconds in which a peer whose stream broke may be back: its line, or this node, may have stumbled."""

AT_WORK_SECONDS = 10.0
"""The longest silence of a working peer, in seconds, also in an inner step of a minute: it reports every few seconds. A
peer that has finished waits longer than this for those that do not answer: so either it is still there when a sleeper
wakes, or the node knows that the run is over."""

SILENT_LEADER_SECONDS = 2 * HEARTBEAT_SECONDS + 5.0
"""The silence after which a first stage counts as silent, in seconds: one that waits renews its record, and the node
reads it as often. One that a member has left in mid-round counts so after `AT_WORK_SECONDS`."""

# Links of a group

STREAM_HEARTBEAT_SECONDS = 1.0
"""The interval of signs of life on a stream that is watched."""

SILENT_BEATS = 8
"""The number of our own signs of life after which a side from which no message has come is gone: dead, or cut off. A
message of 256 KiB takes seconds where two links share an uplink of 1 Mb/s. A side that was stopped itself, with its
machine, reads first what has come meanwhile."""

PARTING_SECONDS = 4.0
"""The time after which this side hangs up on one that has been told that there is nothing more to say and keeps the
stream open."""

# Groups: seats, agreement on a round, steps

MEASURE_SECONDS = 1.5
"""The seconds within which a candidate has to answer twice; else it is too far away, or too busy."""

SEAT_SECONDS = 3.0
"""The time within which a volunteer has to take its seat: a slower one is no use to a group."""

FILL_SECONDS = 20.0
"""The time for each stage behind it within which who has taken a seat has to fill the next, if there is another of its
stage: it may be unable to reach whom that one can."""

REGROUP_SECONDS = 15.0
"""The seconds that a stage waits for a member that another group has to release; then it takes any free one."""

AGREEMENT_TIMEOUT_SECONDS = 60.0
"""The seconds in which a member that is alive has loaded a round, and answers an offer."""

FURTHER_STAGE_SECONDS = 5.0
"""The extra seconds for each stage that an answer passes through, so that the silent stage's own neighbour times out
first."""

LONG_WAIT_SECONDS = 3.0
"""The seconds after which a wait for a neighbour's answer is emitted as an event."""

LONG_STEP_SECONDS = 10.0
"""The seconds after which it is said whom a step in flight waits for."""

STEP_PATIENCE = 20.0
"""The longest step, in usual steps: a volunteer at a tenth of the others' speed, who has just taken a quick one's seat
or begun something else on its machine, takes ten, and its link may be busy. Missing heartbeats tell of worse."""

SHORTEST_STEP_BOUND_SECONDS = 20.0
"""The duration below which no step is too long, in seconds: one may usually take milliseconds, and a machine that
swaps, or a link that drops what it carries, takes seconds."""

FIRST_STEP_SECONDS = 120.0
"""The longest first step, in seconds, before anything is measured: models are loaded and compiled in it."""

FIRST_STEP_PATIENCE = 8.0
"""The longest first step, in times of what this peer's own passes take: the pipeline fills, and others are slower or
share its machine."""

TRUSTED_PATIENCE = 4.0
"""The longest wait that another stage may ask for, in times of this peer's own."""

FURTHER_STAGE_SHARE = 0.25
"""The share by which a neighbour is waited for longer, for each stage between it and the end of the group."""

DEBT_STEPS = 4.0
"""The debt, in usual steps, at which a neighbour is slow."""

LEAST_DEBT_SECONDS = 5.0
"""The debt below which no neighbour is slow, in seconds: where a step takes a fraction of a second, any hiccup of a
machine is several steps."""

SLOW_STEPS = 3
"""The slow steps that such a debt has at least: one or two may be a machine that swaps, or a link that drops what it
carries."""

GROSS_STEPS = 20.0
"""The usual steps by which steps have been longer in all, and by `SHORTEST_STEP_BOUND_SECONDS`, when one of them is
enough."""

FURTHER_DEBT_SHARE = 0.5
"""The share by which a neighbour's debt may be larger for each stage behind it; it also has one more slow step. If one
of those stages is slow, the stage beside it acts first."""

CALLED_LAST_SECONDS, MOST_CALLED_LAST_SECONDS = 600.0, 6 * 3600.0
"""The time in which a volunteer that was replaced is called last: twice as long each time."""

UNANSWERED_SECONDS, MOST_UNANSWERED_SECONDS = 15.0, 600.0
"""The time for which a volunteer that did not answer is not called: twice as long each time."""

# Rounds: contributions that are late, peers that are behind

CREDIT_SHARE = 0.03
"""The share of a round by which rounds are longer in the long run, at most, beside a replica that has become slow."""

SHORTEST_DELAY_SHARE = 0.1
"""The share of a round's length below which a delay is none: what is measured there is noise."""

SHORTEST_WAIT_SECONDS = 2.0
"""The shortest wait for a late contribution, in seconds: a process among many on few cores may rest for as long."""

RETURN_SECONDS, RETURN_SHARE = 20.0, 0.05
"""The time for which a round is kept open for a replica that has been lost in it, and may be back: its first stage was
killed and is started again. In seconds, and as a share of a usual round; the longer of both, and within the round's
deadline."""

LAST_ROUND_RATIO = 4
"""The factor of the wait for the run's last contributions: nobody waits to go on."""

BEHIND_ROUNDS, BEHIND_SECONDS = 4, 60.0
"""The wait for peers that are rounds behind: in usual rounds, and at least in seconds. Meanwhile every honest peer
that is here finishes one, or catches up."""

EARLY_SHARE = 0.8
"""A slow replica stops at this share of the wait, so that its contribution arrives before the end."""

CATCH_UP_RETRY_SECONDS = 1.0
"""The pause between two attempts to catch up."""

REQUESTS_AN_ATTEMPT = 20
"""The number of times that others are asked in one attempt to catch up."""

DISBELIEF_SECONDS = 60.0
"""The time for which a peer does not try again to catch up with peers that could not show that they are ahead."""

LOST_STATE_SECONDS = 10.0
"""The time after which a wait is checked for being one for a state that nobody here holds."""

LOGGED_WAIT_SECONDS = 30.0
"""The time after which a wait for contributions that is longer than a usual round goes into the log."""

# The run's end, and leaving it

NODE_TIMEOUT_SECONDS = 5.0
"""The timeout of one question to the operator's node."""

NODE_POLL_SECONDS = 5.0
"""The interval at which the node is asked by a peer that sees nobody train, or waits for a state."""

IDLE_RUN_SECONDS, IDLE_RUN_POLL_SECONDS = 10.0, 30.0
"""The time without a finished round, and twice the usual at least, after which a peer asks the node now and then how
far the run is: what it sees of the others may be too little."""

LAST_STATE_SECONDS = 5.0
"""The time for which a peer that has missed the run's end, or comes back to it, looks for holders of the last state."""

NODE_AWAY_SECONDS, END_KNOWN_SECONDS, END_KNOWN_POLL_SECONDS = 30.0, 120.0, 2.0
"""The longest time that a peer which has finished the run stays for a node that does not answer; and for one that
answers, until that knows of the end and has the last state; and the interval at which it is asked."""

RETURNED_SECONDS = 15.0
"""The longest time that a peer which comes back to a run that it has finished stays for a node that answers and does
not know of the end: one that has seen nobody train cannot know."""

FAREWELL_SECONDS = 60.0
"""The least bound on the time that a peer serves the others after the last round; a round's usual time, if longer."""

SETTLE_PATIENCE_SECONDS = 15.0
"""The time for which a peer that has finished waits for each one that does not answer, or lacks a contribution."""

TAKER_SECONDS = 60.0
"""The time that a leaving peer waits for another that can take its state: as long as the operator's node needs to see
that it is needed, to start, and to fetch a state of some gigabytes."""

NO_TAKER_SECONDS = 10.0
"""The time that it waits where nobody can take the state, for its owner to think again."""

STEADY_SECONDS = 15.0
"""The time for which a peer must have been the only holder before its owner is told: others come and go."""

LAST_RECEIPTS_SECONDS = 3.0
"""The time that a leaving peer waits for receipts of its work."""

OFFER_SECONDS = 24.0
"""The time that a leaver waits for one answer: after Ctrl-C a peer has half a minute in all."""

HANDOVER_TIMEOUT_SECONDS = 16.0
"""The time within which a successor takes a handover, between two of its inner steps or while it waits for others; else
it declines."""
