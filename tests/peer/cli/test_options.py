"""A command takes the fields of a dataclass as its options."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from peer.cli.options import takes


@dataclass(frozen=True, kw_only=True)
class Wanted:
    name: Annotated[str, typer.Argument()]
    count: Annotated[int, typer.Option(min=1)] = 1
    loud: Annotated[bool, typer.Option("--loud")] = False


def given(*words: str, without: str = "", **defaults: object) -> Wanted | int:
    """What the command is called with, or its exit code where it is not called."""
    app, called = typer.Typer(), list[Wanted]()

    @app.command()
    @takes(Wanted, without=without, **defaults)
    def command(wanted: Wanted) -> None:
        called.append(wanted)

    code = CliRunner().invoke(app, words).exit_code
    return called[0] if called else code


def test_each_option_fills_the_field_of_its_name():
    assert given("a", "--count", "3", "--loud") == Wanted(name="a", count=3, loud=True)
    assert given("a") == Wanted(name="a")


def test_what_has_no_default_is_required_and_what_is_out_of_range_is_refused():
    assert given() == 2
    assert given("a", "--count", "0") == 2


def test_a_command_may_have_defaults_of_its_own():
    assert given("a", count=5) == Wanted(name="a", count=5)


def test_a_command_goes_without_options_that_are_not_for_it():
    assert given("a", "--loud", without="count loud") == 2
    assert given("a", without="count loud") == Wanted(name="a")
