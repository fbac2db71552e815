"""What a person sees, and sees at the end of a run."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import termios
from dataclasses import replace

import pytest
from rich.console import Console

from peer.telemetry.run_report import Chaos, FaultDone, Report
from peer.telemetry.status import EventStream, Status
from peer.telemetry.terminal import (
    PeerScreen,
    ProcessRow,
    TestnetScreen,
    bar,
    panel,
    print_text,
    report_tables,
    sparkline,
)
from protocol.events.activity import (
    Credited,
    Evaluated,
    Failed,
    Finished,
    GroupBroken,
    GroupFormed,
    Injected,
    Joined,
    Paused,
    Progress,
    Pulse,
    RoundDone,
    StepDone,
    TrafficCounted,
)
from protocol.events.decisions import Audited, OnlyHolder, Placed, Recalled, SpotChecked, Suspected, Tried
from protocol.events.event import Event
from protocol.events.waiting import Waiting
from tests.peer.telemetry.test_run_report import report

EVENTS = [
    Progress("asking 127.0.0.1:1 what the run is"),
    Joined("QmAbcdefghij", "volunteer", 1, 0, "127.0.0.1:2"),
    GroupFormed("QmLeaderleader", 0, ["QmLeaderleader", "QmAbcdefghij"]),
    StepDone(1, 0, 7.5, 1024),
    RoundDone(1, 2.0, 1024, {"embedding": 2}, {"embedding": "ab"}, 12_345, 678),
    Evaluated(1, 7.25, 7.125),
    Finished(1),
]


def on(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=200, highlight=False), out


def test_a_sparkline_falls_with_the_loss():
    assert sparkline([3.0, 2.0, 1.0]) == "█▅▁" or sparkline([3.0, 2.0, 1.0]) == "█▄▁"
    assert sparkline([1.0]) == "▁"


def test_steps_pass_by_and_rounds_stay():
    assert EVENTS[3].words is None
    assert EVENTS[3].passing == "round 1, step 1, loss 7.500"
    assert EVENTS[4].words == (
        "Round 1 done in 2.0 s; contributions: embedding 2; "
        "sent so far: 12.3 kB in the pipeline, 678 B in contributions"
    )


def test_what_is_not_sent_is_not_spoken_of():
    words = "Round 1 done in 2.0 s; contributions: embedding 2"
    assert RoundDone(1, 2.0, 0, {"embedding": 2}, {}, 0, 0).words == words
    assert RoundDone(1, 2.0, 0, {"embedding": 2}, {}, 0, 678).words == f"{words}; sent so far: 678 B in contributions"


def test_a_broken_group_says_which_step_is_lost_if_any():
    assert GroupBroken("QmL", 3, 4, "gone").words == "Gone. Step 5 of round 3 is rolled back; the group forms anew."
    assert GroupBroken("QmL", 0, 0, "gone").words == "Gone. No step was in flight; the group forms anew."


def test_credit_says_how_much_by_how_many():
    assert Joined("lab", "lab", 0, 0, "").words is None
    assert Credited(3, 49152, ["QmA", "QmB"]).words == "Credit for round 3: 49,152 tokens, signed by 2 peers."
    assert (Credited(3, 9, ["QmA"]).words or "").endswith("signed by 1 peer.")
    assert Recalled(3, 100, [(7, 20), (8, 3)]).words == "Credit until now: 123 tokens in 3 rounds."


def test_an_audit_tells_the_worst_first():
    assert Audited(4, {"QmGoodgood": 0.02, "QmEvilevil": -0.5}).words == (
        "Audit of round 4, gains in nats: Evilevil -0.5000, Goodgood +0.0200"
    )
    assert Tried(4, "QmNewcomer", 0.02).words == (
        "Trial of peer Newcomer's contributions: round 4 would gain +0.0200 nats; they count from now on"
    )
    assert Tried(4, "QmNewcomer", -0.5, "it would do harm").words == (
        "Trial of peer Newcomer's contributions: round 4 would gain -0.5000 nats; not yet: it would do harm"
    )
    assert SpotChecked(4, 28, 0.456).words == (
        "Spot checks in round 4: 28 of what stages had received, the least of it 0.46 like what was computed"
    )
    assert Suspected("QmEvilevil", "it does harm", 2).words == "WARNING: peer Evilevil is suspected: it does harm"


def test_without_a_terminal_a_daemon_prints_plain_lines():
    console, out = on(terminal=False)
    screen = PeerScreen(Status(), console)
    for event in EVENTS:
        screen(event)
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().splitlines() == [line for line in (each.words for each in EVENTS) if line is not None]


def test_the_same_news_is_told_once():
    console, out = on(terminal=False)
    screen = PeerScreen(Status(), console)
    screen(EVENTS[0])
    screen(EVENTS[0])
    assert len(out.getvalue().splitlines()) == 1


def test_an_error_is_one_line():
    console, out = on(terminal=False)
    PeerScreen(Status(), console)(Failed("there is no stage 7", 2))
    assert out.getvalue() == "hetpeer: there is no stage 7\n"


def test_a_row_follows_its_process():
    row = ProcessRow("volunteer 1, stage 1")
    for second, event in enumerate(EVENTS[:5]):
        row.take(event, now=100.0 + second)
    doing = "it goes on after round 1"
    assert row.cells() == ("volunteer 1, stage 1", "leader", doing, "1.1", "7.500", "", "12.3 kB", "678 B")
    row.take(StepDone(2, 0, 7.0, 1024), now=106.0)
    row.take(StepDone(2, 1, 7.0, 1024), now=108.0)
    assert row.cells()[2:6] == ("training", "2.2", "7.000", "512")


def test_progress_counts_inner_steps_of_all_rounds_where_the_swarm_is_furthest():
    made = report()
    screen = TestnetScreen(made, on(terminal=False)[0])
    screen.start(["volunteer", "datacenter"])
    assert screen.steps_done == 0
    screen.take("volunteer", StepDone(2, 0, 7.5, 1024))
    screen.take("datacenter", StepDone(1, 1, 7.5, 1024))
    assert screen.steps_done == made.manifest.inner.steps + 1


def test_the_table_names_every_process_and_draws_the_loss():
    console, out = on(terminal=True)
    made = report()
    screen = TestnetScreen(made, console)
    screen.start(["volunteer", "datacenter"])
    screen.take("volunteer", EVENTS[3])
    screen.take("datacenter", Failed("it broke", 1))
    screen.stop()
    assert "volunteer" in out.getvalue()
    assert "it broke" in out.getvalue()
    assert "5.000 → 4.000" in out.getvalue()


@pytest.mark.parametrize(("width", "columns"), [(80, 5), (120, 8), (200, 8)])
def test_a_process_has_one_or_two_lines_and_no_word_breaks(width: int, columns: int):
    screen = TestnetScreen(report(), Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False))
    screen.rows = {name: ProcessRow(name) for name in ("bootstrap", "volunteer 1, stage 1", "datacenter 1")}
    for event in (EVENTS[3], EVENTS[4], StepDone(2, 19, 7.5, 1024)):
        screen.take("datacenter 1", event)
    why = "the run begins when all 3 replicas are there, and this one waits for as long as its owner lets it"
    screen.take("volunteer 1, stage 1", Waiting("1 datacenter (0 of 1)", why, 2, 3))
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(screen.draw())
    header, *lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert len(re.split(r"\s{2,}", header)) == columns
    begin, middle, end = (
        next(number for number, line in enumerate(lines) if line.startswith(name))
        for name in ("bootstrap", "volunteer 1, stage 1", "datacenter 1")
    )
    assert (begin, middle, end) == (0, 1, 3)
    assert "waits for 1 datacenter (0 of" in lines[middle]
    assert lines[end - 1].endswith(" …") == (width < 200)
    assert "2.20" in lines[end]
    assert "7.500" in lines[end]
    assert all(len(line) <= width for line in lines)


KILLED = Injected(0, "kill:stage=0@round=1+3s", "killed", ["volunteer"], True)


def test_what_chaos_does_is_a_line_and_a_rows_state():
    console, out = on(terminal=False)
    screen = TestnetScreen(report(), console)
    screen.start(["volunteer", "datacenter"])
    screen.take("chaos", KILLED, 42.4)
    assert out.getvalue() == "0:42 chaos: killed volunteer\n"
    screen.take("volunteer", EVENTS[3])  # said just before it died
    assert (screen.rows["volunteer"].doing, screen.rows["datacenter"].doing) == ("killed", "starting")
    screen.take("chaos", Injected(0, "…", "started again", ["volunteer"], False), 45.4)
    screen.take("volunteer", EVENTS[0])
    assert screen.rows["volunteer"].doing == EVENTS[0].doing


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Injected(0, "…", "cut off", ["A", "B"], True, "A from B"), "cut off A from B"),
        (Injected(0, "…", "healed", ["A", "B"], False), "healed A; B"),
        (Injected(0, "…", "not applied", ["A"], False, "already dead"), "not applied A: already dead"),
        (Injected(0, "…", "not done", [], False, "the run was over before"), "not done: the run was over before"),
    ],
)
def test_what_chaos_does_is_said_in_words(event: Injected, line: str):
    assert event.words == line


def test_a_newcomer_has_a_row():
    screen = TestnetScreen(report(), on(terminal=False)[0])
    screen.start([])
    screen.add("volunteer 3, stage 1")
    screen.take("volunteer 3, stage 1", EVENTS[3])
    assert screen.rows["volunteer 3, stage 1"].doing == "training"


class Terminal:
    """A real pseudo-terminal of a width; what was drawn on it."""

    def __init__(self, width: int) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        self.file = os.fdopen(self.slave, "w")
        environment = os.environ | {"COLUMNS": str(width)}  # rich asks standard output for it, which is pytest's here
        self.console = Console(file=self.file, highlight=False, soft_wrap=True, _environ=environment)

    def drawn(self) -> str:
        """What has been written so far; nothing more is after that."""
        self.file.close()
        found = b""
        with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
            while data := os.read(self.master, 65536):
                found += data
        os.close(self.master)
        return found.decode()


def played(width: int = 100) -> str:
    terminal = Terminal(width)
    status = Status()
    screen = PeerScreen(status, terminal.console)
    tell = EventStream([screen], status)
    for event in (*EVENTS[:2], Placed(1, 12, 20, "its owner asked for this stage"), *EVENTS[2:4]):
        tell(event)
    screen._panel.refresh()
    tell(EVENTS[4])
    tell(GroupBroken("QmL", 2, 0, "stage 0 is gone"))
    screen._panel.refresh()
    tell(EVENTS[6])
    return terminal.drawn()


def plain(drawn: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)


def test_on_a_terminal_a_panel_moves_below_the_lasting_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    drawn = played()
    shown = plain(drawn)
    assert "stage 1 · training · group: erleader [cdefghij]" in shown
    assert "round 1 of 12 █" in shown
    assert "step 1 of 20 · loss 7.500" in shown
    assert "tokens/s" in shown
    assert "· stage 0 is gone" in shown
    assert "Finished: 1 rounds." in shown
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") > 0  # the cursor is back
    thanks = "Thank you: this machine gave 1,024 tokens since it joined. `hetpeer credit` shows what others signed"
    assert f"Finished: 1 rounds.\r\n{thanks}\r\nof them, `hetpeer export --out model` gives the model." in shown
    assert shown.rstrip().endswith("`hetpeer export --out model` gives the model.")  # the panel is gone


def test_text_breaks_between_words_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    words = "Waiting for a neighbour, [bold]who[/bold] has not answered yet"
    terminal = Terminal(30)
    print_text(terminal.console, words)
    assert plain(terminal.drawn()).splitlines() == [
        "Waiting for a neighbour,",
        "[bold]who[/bold] has not",
        "answered yet",
    ]
    out = io.StringIO()
    print_text(Console(file=out, width=30), words)
    assert out.getvalue() == f"{words}\n"


def test_a_narrow_terminal_cuts_the_panel_and_colours_can_be_turned_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    drawn = played(width=30)
    assert not re.search(r"\x1b\[(3|4|9|10)[0-9]m", drawn)
    assert "stage 1 · training · group: e…" in plain(drawn)


def test_a_dumb_terminal_has_plain_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal(80)
    screen = PeerScreen(Status(), terminal.console)
    for event in EVENTS:
        screen(event)
    assert "\x1b" not in terminal.drawn()


# The panel, line by line

ME = "QmAbcdefghij"
TRAINING: list[Event] = [
    Joined(ME, "volunteer", 1, 0, "h:1"),
    Placed(1, 12, 20, "its owner asked for this stage"),
    GroupFormed("QmLeaderleader", 0, ["QmLeaderleader", ME]),
    Pulse(0, 0, 0, 0, 5, 1),
    StepDone(3, 8, 5.25, 1000),
    Pulse(2_000_000, 0, 500_000, 0, 5, 1),
    StepDone(3, 9, 5.125, 1000),
]


def status_of(*events: Event) -> Status:
    made = Status()
    for second, event in enumerate(events):
        made.take(event, float(second))
    return made


def test_a_bar_is_as_full_as_the_round():
    assert [bar(done, 4, 8) for done in (0, 1, 4, 9)] == ["░" * 8, "██░░░░░░", "█" * 8, "█" * 8]
    assert bar(0, 0, 4) == "░░░░"


def test_a_member_that_trains_sees_where_it_is():
    place, round, rates, life = panel(status_of(*TRAINING), 60.0, 100)
    assert place == "stage 1 · training · group: erleader [cdefghij]"
    assert round.startswith("round 3 of 12 ███")
    assert round.endswith("░ step 10 of 20 · loss 5.125")
    assert rates == "500 tokens/s · up 1.0 MB/s · down 250.0 kB/s · credit 0 tokens"
    assert life == "joined 1:00 ago · 5 peers, 1 silent"


@pytest.mark.parametrize("role", ["datacenter", "observer"])
def test_nobody_signs_for_whoever_has_the_whole_model_and_nothing_is_said_of_it(role: str):
    status = status_of(Joined(ME, role, 0, 0, "h:1"), StepDone(1, 0, 7.5, 1024))
    assert not any("credit" in line for line in panel(status, 60.0, 100))
    console, out = on(terminal=False)
    PeerScreen(status, console)(Finished(1))
    assert "`hetpeer credit` says which of its rounds are counted" in out.getvalue()
    assert "signed" not in out.getvalue()


def test_one_that_waits_says_for_what():
    lacks = Waiting("1 datacenter (0 of 1)", "the run begins when all 3 replicas are there", 2, 3)
    place, _, rates, life, waits = panel(status_of(*TRAINING, lacks), 19.0, 100)
    assert "· waiting ·" in place
    assert rates.startswith("0 tokens/s")
    assert life == "joined 0:19 ago · 5 peers, 1 silent"
    assert waits == "waiting 12 s for 1 datacenter (0 of 1): the run begins when all 3 replicas are there"
    narrow = panel(status_of(*TRAINING, replace(lacks, most_seconds=60.0)), 19.0, 60)[4:]
    assert narrow == [
        "waiting 12 s, at most 60 s, for 1 datacenter (0 of 1): the",
        "run begins when all 3 replicas are there",
    ]
    endless = panel(status_of(*TRAINING, replace(lacks, what="others " * 80)), 19.0, 60)[4:]
    assert len(endless) == 5
    assert endless[-1].endswith(" …")
    alone = panel(status_of(TRAINING[0], lacks), 19.0, 100)
    assert alone[0] == "stage 1 · waiting"  # in a group or not: the wait says what is missing
    paused = status_of(*TRAINING, Paused("until 23:00, for these are quiet hours"))
    assert panel(paused, 60.0, 100)[0] == "stage 1 · paused · no group"


def test_what_its_owner_watches_has_lines_of_its_own():
    watched = TrafficCounted(12_300_000_000, "200GB/month"), OnlyHolder("the token embedding and stage 1")
    *_, traffic, holder = panel(status_of(*TRAINING, *watched), 60.0, 60)
    assert (traffic, holder) == (
        "traffic 12.3 GB of 200GB/month",
        "only holder of the token embedding and stage 1",
    )


@pytest.mark.parametrize("width", [1, 8, 20, 40, 79, 200])
def test_no_line_is_wider_than_the_terminal(width: int):
    assert all(len(line) <= width for line in panel(status_of(*TRAINING), 60.0, width))
    waits = Waiting("x" * 50, "y", 0, 1, 60.0)
    assert all(len(line) <= width for line in panel(status_of(*TRAINING, waits), 60.0, width))


# The end of a run


def shown(made: Report) -> str:
    out = io.StringIO()
    Console(file=out, width=160, highlight=False).print(report_tables(made))
    return out.getvalue()


def test_it_has_a_row_a_round_and_the_outcome():
    said = shown(report())
    assert "5.000" in said
    assert "4.000" in said
    assert "stage-0:2" in said
    assert "outcome: completed" in said
    assert "fault" not in said


@pytest.mark.parametrize(
    ("lab", "words"),
    [(3.99, "final loss 4.000; undisturbed lab 3.990: difference +0.010, of at most 0.05"), (None, "not compared")],
)
def test_after_chaos_it_has_every_fault_and_what_became_of_the_run(lab: float | None, words: str):
    made = report()
    done = FaultDone("pause:stage=0@round=1+3s", ["paused volunteer", "resumed"], 72.0, (1, 3))
    undone = FaultDone("kill:all@round=2", ["not done: the run was over before"], None, (2, 3))
    made.chaos = Chaos([done, undone], frozenset({"volunteer", "datacenter"}), lab)
    lines = shown(made).splitlines()
    row = next(line for line in lines if "pause:stage=0" in line).split()
    assert row == ["pause:stage=0@round=1+3s", "paused", "volunteer", "1.3", "1:12"]
    assert next(line for line in lines if "kill:all" in line).split()[-2:] == ["–"] * 2
    assert "rounds completed: 2 of 2" in lines
    assert "digests after the last round: equal in 2 processes" in lines
    assert any(words in line for line in lines)


def test_a_run_that_was_never_evaluated_has_no_loss_to_show():
    made = report(losses=())
    made.chaos = Chaos([], frozenset())
    assert "final loss unknown" in shown(made)
    assert "digests after the last round: none, nobody was there at the end" in shown(made)
