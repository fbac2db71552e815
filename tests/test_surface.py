"""What users see of hetpeer. Adding a flag is a decision: it is made here too."""

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from peer.cli.__main__ import app
from tests.docs.pages import PAGES

ROOT = Path(__file__).parents[1]

FLAGS = {
    "admin invite": "dir expires gateway json uses",
    "admin invitations": "dir json",
    "admin withdraw": "dir json",
    "admin peers": "dir json",
    "admin log": "dir json last",
    "admin revoke": "dir from-round json",
    "admin rewind": "dir json to-round",
    "bootstrap": "announce audit certificate-life closed dashboard data dir dry-run evaluate join json "
    "keep-model listen log-json mirror revoke track trials until-stdin-closes weights",
    "join": "announce compile data data-cache device dir help-all json listen log-json manifest max-disk "
    "max-down max-memory max-power max-temperature max-traffic max-up memory metrics precision priority "
    "private-mirrors quiet-hours reach relay stage threads until-stdin-closes verbose",
    "replica": "announce audit compile data data-cache device dir help-all json listen log-json manifest "
    "max-disk max-down max-memory max-power max-temperature max-traffic max-up memory metrics microbatch nnodes "
    "node-rank nproc precision priority private-mirrors quiet-hours reach relay rendezvous secret-file threads "
    "until-stdin-closes verbose",
    "observe": "announce audit data data-cache device dir help-all hold json listen log-json max-disk max-down "
    "max-memory max-power max-temperature max-traffic max-up metrics priority private-mirrors quiet-hours reach "
    "relay stay threads until-stdin-closes verbose",
    "pause": "dir json",
    "resume": "dir json",
    "why": "json",
    "status": "json watch",
    "runs": "json",
    "dashboard": "demo port trouble",
    "testnet": (
        "audit balance chaos compression data datacenters device dir groups inner-steps layers memory most-steps "
        "ngrams no-compare optimizer overlap preset report rounds stages step-overlap"
    ),
    "lab run": "data device dir json report threads track weights",
    "plan": "down figure2 json latency measured model overlap teraflops up",
    "export": "evaluate force format json out round threads",
    "sample": "device json seed temperature threads tokens top-p",
    "import": "force json out",
    "credit": "json out verify",
    "doctor": "announce device dir json listen preset seconds stages threads",
    "data prepare": "end-of-text field held-out json mirror out seed skip-bad tokenizer train-tokenizer",
    "data show": "json",
    "data verify": "blocks json",
}


def commands() -> dict[str, object]:
    top = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    groups = {name: group.commands for name, group in top.items() if hasattr(group, "commands")}
    below = {f"{name} {each}": command for name, group in groups.items() for each, command in group.items()}
    return {name: command for name, command in top.items() if name not in groups} | below


def test_the_commands_and_their_flags_are_these():
    found = {
        name: " ".join(sorted(flag.removeprefix("--") for each in command.params for flag in each.opts if "--" in flag))
        for name, command in commands().items()
    }
    assert found == FLAGS


@pytest.mark.parametrize("command", FLAGS)
def test_every_help_says_what_it_does_and_shows_an_example(command: str):
    shown = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "Example" in shown.output
    assert f"hetpeer {command}" in shown.output


@pytest.mark.parametrize("command", ["join", "replica", "observe"])
def test_a_peers_help_shows_eight_options_in_less_than_a_screen_of_ninety_lines_and_all_when_asked(command: str):
    usual, everything = (
        CliRunner().invoke(app, [command, flag], env={"COLUMNS": "80"}).output for flag in ("--help", "--help-all")
    )
    assert usual.count("\n") <= 90
    assert len(re.findall(r"^│ --", usual, re.MULTILINE)) == 8 + 2  # and the two helps
    shown = {flag for flag in FLAGS[command].split() if re.search(rf"--{flag}\b", everything)}
    assert {*FLAGS[command].split()} - shown <= {"until-stdin-closes", "hold"}


def test_a_volunteers_help_has_the_limits_that_its_guide_begins_with():
    first_page = (ROOT / "docs/volunteer.md").read_text().split("\n## ")[0]
    limits = re.findall(
        r"`(--[\w-]+)", next(line for line in first_page.splitlines() if line.startswith("- **Limits**"))
    )
    usual = CliRunner().invoke(app, ["join", "--help"], env={"COLUMNS": "80"}).output
    assert "--max-traffic" in limits
    assert [limit for limit in limits if f"│ {limit} " not in usual] == []


@pytest.mark.parametrize("command", FLAGS)
def test_no_kind_of_a_value_breaks_across_lines(command: str):
    for flag in {"--help", "--help-all" if "help-all" in FLAGS[command] else "--help"}:
        shown = CliRunner().invoke(app, [*command.split(), flag], env={"COLUMNS": "80"}).output
        assert re.findall(r"<[a-z][a-z0-9|]*(?=\s*(?:  |│))", shown) == []


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("join --dry-run", "No such option: --dry-run. `hetpeer doctor TICKET` says, without joining,"),
        ("observe --dry-run", "`hetpeer doctor TICKET` says, without joining,"),
        ("join --nproc 2", "No such option: --nproc. It is an option of `hetpeer replica`."),
        ("doctor --max-memory 8GB", "It is an option of `hetpeer join` and `hetpeer replica` and `hetpeer observe`."),
        ("join --max-trafic 1GB/day", "No such option: --max-trafic (Possible options: "),
        ("join --hold", "No such option: --hold"),
    ],
)
def test_an_option_of_another_command_is_pointed_to(asked: str, answer: str):
    refused = CliRunner().invoke(app, asked.split(), env={"COLUMNS": "200"})
    assert refused.exit_code == 2
    assert answer in " ".join(refused.output.split())


def test_a_replica_computes_in_one_process_at_least():
    refused = CliRunner().invoke(app, ["replica", "--nproc", "0"], env={"COLUMNS": "200"})
    assert refused.exit_code == 2
    assert "Invalid value for '--nproc'" in refused.output


def test_every_option_is_explained():
    for name, command in commands().items():
        for each in command.params:
            assert each.hidden or each.help, f"{name} {each.name}"


@pytest.mark.parametrize("group", ["", "admin", "data", "lab"])
def test_the_help_of_a_group_shows_examples_too(group: str):
    shown = CliRunner().invoke(app, [*group.split(), "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "Examples:" in shown.output


def test_every_command_has_its_place_in_the_help():
    everything = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    assert [each.name for each in everything if not each.rich_help_panel] == []


def test_every_file_that_the_documents_name_is_there():
    for document in PAGES:
        text = document.read_text()
        named = re.findall(r"`((?:protocol|peer|bootstrap|tests|examples|docs)/[\w./-]+\.\w+)`", text)
        missing = [path for path in named if not (ROOT / path).exists()]
        assert not missing, (document.name, missing)
