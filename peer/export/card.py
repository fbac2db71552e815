"""The model card: what an export is, in words."""

from dataclasses import dataclass

from peer.export.collected import Collected
from protocol.identity import PeerId, stage_part
from protocol.layout import parameter_count
from protocol.outer.history import History

CONTRIBUTORS_NAMED = 50


@dataclass(frozen=True, slots=True)
class HeldOutLosses:
    """Held-out, in nats per token: through the boundaries of a group, and plain."""

    through: float
    plain: float


def card(collected: Collected, losses: HeldOutLosses | None) -> str:
    """`README.md`."""
    manifest, descriptor = collected.descriptor.manifest, collected.descriptor
    model, replicas, outer = manifest.model, manifest.replicas, manifest.outer
    authors = contributors(collected)
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [hetpeer, llama]",
        "---",
        "",
        f"# {manifest.run.name}",
        "",
        f"A LLaMA of {parameter_count(manifest) / 1e6:,.1f} million parameters, trained by volunteers and datacenters "
        "together, with hetpeer.",
        "",
        "| | |",
        "|---|---|",
        f"| run | `{descriptor.run_id}` |",
        f"| operator | `{descriptor.operator}` |",
        f"| outer round | {collected.round} of {outer.rounds} |",
        f"| tokens seen | at most {tokens_at_most(collected):,} |",
        f"| contributors | {len(authors)} |",
        f"| model | {model.layers} layers, d = {model.d}, {model.heads} heads ({model.kv_heads} of keys and values), "
        f"FFN {model.ffn}, context {model.context}, vocabulary {model.vocabulary} |",
        f"| replicas | {replicas.groups} of volunteers, one for each of {replicas.stages} stages, "
        f"d / k = {replicas.compression}; {replicas.datacenters} of datacenters |",
        f"| held-out loss | {_loss(losses)} |",
        "",
        "## Load it",
        "",
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForCausalLM.from_pretrained(".")',
        'inputs = tokenizer("The", return_tensors="pt", return_token_type_ids=False)',
        "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))",
        "```",
        "",
        'Or `hetpeer sample . "The"`. `hetpeer import . --out run.toml` begins another run from it.',
        "",
        "## Who made it",
        "",
        "Each peer signed what it contributed; peers that trained a stage contributed to that stage alone.",
        "",
        "| peer | rounds |",
        "|---|---|",
        *(f"| `{author}` | {rounds} |" for author, rounds in list(authors.items())[:CONTRIBUTORS_NAMED]),
        *([f"| and {len(authors) - CONTRIBUTORS_NAMED} more | |"] if len(authors) > CONTRIBUTORS_NAMED else []),
        "",
        "## Digests",
        "",
        "SHA-256 of the outer state of each part; every peer of the run that holds this round tells the same.",
        "",
        *(f"* {part}: `{digest}`" for part, digest in collected.digests.items()),
        "",
    ]
    return "\n".join(lines)


def contributors(collected: Collected) -> dict[PeerId, int]:
    """Who contributed to the most rounds first: author → rounds, of whichever part it contributed to most."""
    rounds: dict[PeerId, int] = {}
    for history in collected.counted.values():
        for author in history.ranges:
            rounds[author] = max(rounds.get(author, 0), rounds_of(history, author))
    return dict(sorted(rounds.items(), key=lambda each: (-each[1], each[0])))


def rounds_of(history: History, author: PeerId) -> int:
    """How many rounds of an author count."""
    return sum(last - first + 1 for first, last in history.ranges.get(author, []))


def tokens_at_most(collected: Collected) -> int:
    """Tokens behind what stage 0 was contributed, had every replica done all steps of its rounds."""
    manifest = collected.descriptor.manifest
    return collected.counted[stage_part(0)].total() * manifest.inner.steps * manifest.tokens_per_step


def _loss(losses: HeldOutLosses | None) -> str:
    if losses is None:
        return "not measured (`hetpeer export --evaluate` does)"
    return f"{losses.plain:.4f} nats per token; {losses.through:.4f} through the boundaries of a group"
