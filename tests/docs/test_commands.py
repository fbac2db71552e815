"""Every command that a page shows is one that there is, and is run by a test, or the page says why not."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from examples.experiments.__main__ import app as experiments
from peer.cli.__main__ import app
from tests.docs.pages import BLOCK, EXPERIMENTS, PAGES, ROOT, Typed, typed

ALL = [each for page in PAGES for each in typed(page)]

HERE = "tests/docs/test_commands.py::test_what_takes_no_time_runs_as_it_is_typed"
BY_HAND = "tests/system/test_by_hand.py::test_the_four_terminals_of_the_readme_finish_the_run"
GUIDES = "tests/system/test_guides.py::test_the_operators_and_the_volunteers_first_commands_finish_a_run"
AS_TYPED = tuple(test.partition("::")[0] for test in (HERE, BY_HAND, GUIDES))
"""What these run they read from the pages, word by word."""

MIRRORS = "tests/system/test_prepared.py::test_volunteers_read_mirrors_one_of_which_lies_and_a_datacenter_its_own_copy"
CLOSED = (
    "tests/system/test_admission.py::test_a_closed_run_is_joined_by_invitation_alone_whose_secret_stays_in_the_ticket"
)
SECOND = "tests/system/test_without_operator.py::test_newcomers_join_by_the_second_node_when_the_first_is_killed"
REVOKED = "tests/system/test_without_operator.py::test_a_revocation_takes_a_replica_out_of_a_running_swarm"
REWOUND = (
    "tests/system/test_returning.py::"
    "test_an_older_state_waits_for_the_newest_one_and_stands_only_by_the_operators_rewind"
)
FROM_MODEL = "tests/system/test_models.py::test_a_run_that_begins_from_it_begins_at_its_loss"
FROM_SWARM = "tests/system/test_models.py::test_from_the_swarm_it_is_the_state_of_the_round_it_names"
SAMPLED = "tests/peer/cli/test_models.py::test_a_person_sees_the_prompt_and_every_character_though_many_are_no_utf8"
IMPORTED = "tests/peer/cli/test_import.py::test_the_manifest_fits_and_a_run_begins_from_every_weight"
LAB = "tests/peer/cli/test_import.py::test_the_lab_trains_from_it"
TESTNET = "tests/system/test_testnet.py::test_its_report_tells_every_round_and_its_loss_fell"
CHAOS = "tests/system/test_chaos.py::test_a_paused_a_killed_and_a_leaving_process_cost_time_and_one_more_takes_a_place"
PREPARED = "tests/peer/cli/test_data.py::test_text_is_prepared_shown_and_checked"
MIRROR = "tests/peer/cli/test_data.py::test_a_mirror_is_checked_as_peers_will_ask_it"
INVITED = "tests/peer/cli/test_admin.py::test_the_ticket_of_an_invitation_lets_in_as_many_as_were_asked_for"
LISTED = "tests/peer/cli/test_admin.py::test_invitations_are_listed_with_what_is_left_and_who_came"
WITHDRAWN = "tests/peer/cli/test_admin.py::test_a_withdrawn_invitation_is_shown_as_such"
PAUSED = "tests/system/test_citizen.py::test_a_member_that_pauses_and_goes_on_has_the_state_of_the_others_at_the_end"
COMPILED = "tests/system/test_devices.py::test_a_replica_in_bf16_and_compiled_holds_the_state_of_volunteers_in_fp32"
WATCHED = "tests/system/test_watching.py::test_a_replica_is_watched_and_asked_why"
STATUS = (
    "tests/system/test_status.py::test_rounds_advance_with_their_loss_and_who_is_killed_is_lost_and_who_pauses_says_why"
)
SEEN = "tests/system/test_dashboard.py::test_a_browser_sees_rounds_advance_and_a_killed_peer_turn_red"
DEMO = "tests/peer/cli/test_dashboard.py::test_a_made_up_run_is_served_to_this_machine_alone_and_says_so"
SIGNED = (
    "tests/system/test_credit.py::"
    "test_all_tokens_of_a_volunteer_are_signed_by_its_neighbour_and_a_forged_file_does_not_verify"
)
WORKERS = "tests/system/test_devices.py::test_no_worker_outlives_its_daemon_and_who_leaves_contributes_first"
MACHINES = (
    "tests/system/test_machines.py::"
    "test_a_machine_that_is_cut_off_in_the_midst_of_a_round_comes_back_and_the_state_is_that_of_one_machine"
)

RUN_BY = {
    "bootstrap": {"": BY_HAND, "--dry-run": HERE, "--listen": GUIDES, "--announce": GUIDES, "--closed": CLOSED}
    | {"--data": MIRRORS, "--mirror": MIRRORS, "--join": SECOND, "--weights": FROM_MODEL, "--dashboard": SEEN},
    "join": {"": BY_HAND, "--stage": BY_HAND}
    | dict.fromkeys(("--max-up", "--max-down", "--max-memory", "--max-disk", "--quiet-hours", "--data-cache"), GUIDES)
    | {"--listen": GUIDES, "--announce": GUIDES, "--metrics": WATCHED, "--log-json": WATCHED},
    "replica": {"": BY_HAND, "--data": MIRRORS, "--nproc": WORKERS, "--dir": WORKERS}
    | {"--precision": COMPILED, "--compile": COMPILED}
    | dict.fromkeys(("--nnodes", "--node-rank", "--rendezvous", "--secret-file"), MACHINES),
    "status": {"": STATUS, "--json": STATUS},
    "dashboard": dict.fromkeys(("", "--demo", "--trouble"), DEMO),
    "credit": {"": SIGNED, "--out": SIGNED, "--verify": SIGNED},
    "why": {"": WATCHED, "--json": WATCHED},
    "doctor": {"": GUIDES},
    "pause": {"": PAUSED},
    "resume": {"": PAUSED},
    "admin invite": {"": INVITED, "--uses": INVITED, "--expires": INVITED, "--gateway": SECOND},
    "admin invitations": {"": LISTED},
    "admin withdraw": {"": WITHDRAWN},
    "admin peers": {"": GUIDES},
    "admin log": {"": GUIDES, "--last": GUIDES},
    "admin revoke": {"": REVOKED, "--from-round": REVOKED},
    "admin rewind": {"": REWOUND, "--to-round": REWOUND},
    "data prepare": {"": PREPARED, "--out": PREPARED, "--train-tokenizer": PREPARED},
    "data show": {"": PREPARED},
    "data verify": {"": PREPARED, "--blocks": MIRROR},
    "export": {"": FROM_SWARM, "--out": FROM_SWARM, "--evaluate": FROM_SWARM},
    "sample": {"": SAMPLED} | dict.fromkeys(("--tokens", "--temperature", "--top-p", "--seed", "--json"), SAMPLED),
    "import": {"": IMPORTED, "--out": IMPORTED},
    "plan": dict.fromkeys(("", "--up", "--down", "--teraflops", "--overlap", "--model", "--figure2", "--json"), HERE),
    "lab run": {"": LAB, "--report": LAB},
    "testnet": {"": TESTNET, "--chaos": CHAOS}
    | dict.fromkeys(("--groups", "--stages", "--rounds", "--inner-steps"), TESTNET),
}
"""For each command and each of its options that a page shows: a test that runs it."""

USAGE_ERROR = typer.BadParameter.__mro__[1]
"""Click's, which typer carries with it and does not name."""

QUICK = (("plan", ""), ("bootstrap", "--dry-run"))
"""What is over in a moment, by command and option."""


def command_of(words: tuple[str, ...], program: typer.Typer = app) -> str:
    """The command's name, parsed as the real program would; `words` begin with the program's own name. Nothing is
    called.

    Raises:
        USAGE_ERROR: there is no such command or option, or an argument is missing or wrong.
    """
    command, name, rest, context, names = typer.main.get_command(program), "hetpeer", list(words[1:]), None, []
    while True:
        context = command.make_context(name, rest, parent=context)
        if not hasattr(command, "commands"):
            return " ".join(names)
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        names.append(name)


def options_of(words: tuple[str, ...]) -> list[str]:
    """The long options that are typed, and "" for the command itself."""
    return ["", *(word.partition("=")[0] for word in words if word.startswith("--"))]


@pytest.mark.parametrize("each", [each for each in ALL if each.words[0] == "hetpeer"], ids=str)
def test_it_is_a_command_with_these_options_and_a_test_runs_it(each: Typed):
    name = command_of(each.words)
    if not each.not_run:
        known = RUN_BY.get(name, {})
        assert [option for option in options_of(each.words) if option not in known] == []


NAMED = ("admin revoke", "data prepare", "import", "lab")
"""Commands that messages name, and do not show: each has arguments that only its user knows."""


def shown_on_screen(source: str) -> list[str]:
    """The commands in the texts of a module, but for docstrings and help of options. What a text computes is "7",
    which is a number, and may be a name."""
    tree = ast.parse(source)
    aside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg == "help"
        for part in ast.walk(node)
    }
    aside |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in aside:
            aside |= {id(part) for part in node.values}
            texts.append("".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in aside:
            texts.append(node.value)
    return [command for text in texts for command in re.findall(r"`(hetpeer [a-z][^`]+)`", text)]


def test_every_command_on_a_screen_works_as_it_is_written():
    assert shown_on_screen('"""`hetpeer a`"""\nf("`hetpeer b T`", help="`hetpeer c`")') == ["hetpeer b T"]
    sources = [path for package in ("peer", "bootstrap", "protocol") for path in (ROOT / package).rglob("*.py")]
    commands = {command for path in sources for command in shown_on_screen(path.read_text(encoding="utf-8"))}
    assert "hetpeer export --out model" in commands
    broken = {}
    for command in commands - {f"hetpeer {name}" for name in NAMED}:
        try:
            command_of(tuple(command.split()))
        except USAGE_ERROR as error:
            broken[command] = error.format_message()
    assert broken == {}


@pytest.mark.parametrize("each", [each for each in ALL if each.words[:3] == EXPERIMENTS], ids=str)
def test_it_is_a_command_of_the_experiments_and_what_takes_no_time_runs(each: Typed):
    assert command_of(each.words[2:], experiments) in ("sweep", "report", "prepare")
    if "--list" in each.words:
        assert "runs" in CliRunner().invoke(experiments, each.words[3:]).output


@pytest.mark.parametrize("each", [each for each in ALL if each.words[0] == "make"], ids=str)
def test_it_is_a_target_of_the_makefile(each: Typed):
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert each.words[1] in targets
    assert each.not_run or each.words[1] == "test"


def test_files_that_are_named_to_make_are_tested_alone():
    def runs(*arguments: str) -> list[str]:
        said = subprocess.run(["make", "-n", "test", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
        return re.findall(r"\.venv/bin/pytest ([^|\n]*)", said.stdout)

    assert runs("ARGS=-s tests/system/test_docker.py") == ["-s tests/system/test_docker.py"]
    assert [each.split()[-2:] for each in runs("ARGS=-k frames")] == [["-k", "frames"]] * 2


@pytest.mark.parametrize("command", RUN_BY)
def test_the_tests_that_run_it_are_there_and_type_it(command: str):
    for option, test in RUN_BY[command].items():
        file, _, function = test.partition("::")
        source = (ROOT / file).read_text(encoding="utf-8")
        assert f"def {function}(" in source
        assert file in AS_TYPED or option in source or option in (ROOT / "tests/reference/processes.py").read_text()


def is_quick(each: Typed) -> bool:
    typed = " ".join(each.words[1:])
    return any(typed.startswith(name) and option in options_of(each.words) for name, option in QUICK)


@pytest.mark.parametrize("each", [each for each in ALL if is_quick(each)], ids=str)
def test_what_takes_no_time_runs_as_it_is_typed(each: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "run.toml").write_text(operators_example())
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, each.words[1:])
    assert done.exit_code == 0, done.output
    assert done.output


def operators_example() -> str:
    """The manifest that the operator's guide shows."""
    blocks = BLOCK.finditer((ROOT / "docs/operator.md").read_text(encoding="utf-8"))
    return next(block["text"] for block in blocks if block["kind"] == "toml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("hetpeer jion", "No such command"),
        ("hetpeer join --stages 2", "No such option"),
        ("hetpeer join --stage two", "Invalid value for '--stage'"),
        ("hetpeer admin invite --uses 0", "Invalid value for '--uses'"),
        ("hetpeer export somewhere", "Missing option"),
        ("hetpeer data prepare --out there", "Missing argument"),
    ],
)
def test_what_is_no_command_is_found(words: str, said: str):
    with pytest.raises(USAGE_ERROR) as caught:
        command_of(tuple(words.split()))
    assert said in caught.value.format_message()
