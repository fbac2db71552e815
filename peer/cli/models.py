"""`hetpeer export`, `sample` and `import`: models out of runs, and into them. A few lines a command, as in
`peer/cli/__main__.py`."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from peer.cli.options import DeviceOption, JsonOption, terminal

EXPORT_EXAMPLES = (
    "Examples:\n\n  hetpeer export hetpeer1-… --out ~/model\n\n"
    "  hetpeer export ~/.hetpeer/bootstrap-first-run --out ~/model --evaluate\n\n"
    "  hetpeer export ~/node ~/stage-0 ~/stage-1 --out ~/model --round 40"
)
SAMPLE_EXAMPLES = (
    'Examples:\n\n  hetpeer sample ~/model "The people"\n\n'
    '  hetpeer sample ~/model "The people" --tokens 40 --temperature 0\n\n'
    '  hetpeer sample ~/model "The people" --seed 7 --top-p 0.9 --json'
)
IMPORT_EXAMPLES = (
    "Examples:\n\n  hetpeer import ~/model --out run.toml\n\n"
    "  hetpeer bootstrap run.toml --weights ~/model --data ~/texts"
)

ThreadsOption = Annotated[int, typer.Option(min=0, help="CPU cores for one operation; 0 takes all.")]


def export(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE…",
            help="The run's ticket, to take the model from the swarm; or the folder of a datacenter, an observer or a "
            "bootstrap node that evaluates; or of volunteers, of every stage one, and of the bootstrap node.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the model goes; made if it is missing.")],
    format: Annotated[Literal["hf"], typer.Option(help="hf: what transformers loads, in safetensors.")] = "hf",
    round: Annotated[
        int | None, typer.Option(min=0, help="The model after this round, if it is kept. Default: the last one.")
    ] = None,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Measure the held-out loss, on the CPU, and note it in the model card.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the model in DIR.")] = False,
    threads: ThreadsOption = 0,
    json: JsonOption = False,
) -> None:
    """Write a run's model, all its stages after one round, as a folder that transformers loads."""
    from peer.cli.commands.export import ExportOptions
    from peer.cli.commands.export import export as run

    sys.exit(run(ExportOptions(source, out, round, evaluate, force, threads), terminal(json)))


def sample(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            metavar="CHECKPOINT",
            help="What `hetpeer export` wrote, any LLaMA of transformers that a run could begin from, or the folder of "
            "a peer that has the whole model.",
        ),
    ],
    prompt: Annotated[str, typer.Argument(help="What the text begins with; it may be empty.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="At most so many; fewer where the text ends.")] = 100,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 takes the likeliest token each time; 1 draws as the model expects.")
    ] = 0.8,
    top_p: Annotated[
        float, typer.Option(min=0, max=1, help="Draw from the likeliest tokens that are so probable together.")
    ] = 0.95,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed, the same text. Default: random.")] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = 0,
    json: JsonOption = False,
) -> None:
    """Write text with a model, token by token."""
    from peer.cli.commands.sample import SampleOptions
    from peer.cli.commands.sample import sample as run
    from peer.compute.generation import Sampling

    sampling = Sampling(temperature, top_p)
    sys.exit(run(SampleOptions(checkpoint, prompt, tokens, sampling, seed, device, threads), terminal(json)))


def import_(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="DIR", help="A LLaMA: config.json, safetensors (also sharded), tokenizer.json.")
    ],
    out: Annotated[Path, typer.Option(metavar="RUN.toml", help="Where the manifest goes.")],
    force: Annotated[bool, typer.Option("--force", help="Replace RUN.toml.")] = False,
    json: JsonOption = False,
) -> None:
    """Check that a run can begin from a checkpoint, and write a manifest for it."""
    from peer.cli.commands.import_ import ImportOptions
    from peer.cli.commands.import_ import import_ as run

    sys.exit(run(ImportOptions(checkpoint, out, force), terminal(json)))
