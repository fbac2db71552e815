"""The cut of a model into stages, against all cuts there are."""

from fractions import Fraction
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.cut import Balance, GroupSizes, StageCost, cheapest_cut, compute_costs, even_cut, memory_costs
from protocol.layout import elements, layer_layout, operations_per_token
from protocol.manifest import Manifest, check_manifest
from tests.reference.small_manifest import small_manifest

COSTS = st.lists(st.builds(StageCost, st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=5)


def every_cut(layers: int, stages: int) -> list[tuple[int, ...]]:
    """All ways to give `layers` to stages, at least one each."""
    borders = combinations(range(1, layers), stages - 1)
    return [tuple(end - start for start, end in pairwise((0, *inner, layers))) for inner in borders]


def dearest(cut: tuple[int, ...], costs: list[StageCost]) -> int:
    return max(cost.fixed + count * cost.a_layer for count, cost in zip(cut, costs, strict=True))


@given(COSTS, st.integers(0, 7))
def test_no_cut_has_a_cheaper_dearest_stage(costs: list[StageCost], more: int):
    layers = len(costs) + more
    found = cheapest_cut(layers, costs)
    assert found in every_cut(layers, len(costs))
    assert dearest(found, costs) == min(dearest(cut, costs) for cut in every_cut(layers, len(costs)))


@given(st.integers(1, 64), st.data())
def test_by_count_the_first_stages_have_one_more(layers: int, data: st.DataObject):
    stages = data.draw(st.integers(1, layers))
    cut = even_cut(layers, stages)
    assert (sum(cut), len(cut)) == (layers, stages)
    assert max(cut) - min(cut) <= 1
    assert list(cut) == sorted(cut, reverse=True)


def test_nine_layers_in_four_stages():
    assert even_cut(9, 4) == (3, 2, 2, 2)


def test_of_stages_that_cost_as_much_the_earliest_gets_the_layer():
    assert cheapest_cut(5, [StageCost(3, 2), StageCost(3, 2), StageCost(1, 2)]) == (2, 1, 2)


def sizes(draw: st.DrawFn) -> Manifest:
    heads, kept = draw(st.sampled_from([(2, 1), (2, 2), (4, 2)]))
    model = {
        "layers": draw(st.integers(1, 8)),
        "d": 16,
        "heads": heads,
        "kv_heads": kept,
        "ffn": draw(st.integers(1, 200)),
        "context": draw(st.sampled_from([2, 8, 512])),
        "vocabulary": draw(st.integers(258, 9000)),
    }
    microbatch = draw(st.sampled_from([1, 2, 16]))
    stages = draw(st.integers(1, min(4, model["layers"])))
    ngrams = draw(st.integers(0, 3)) if stages > 1 else 0
    return check_manifest(
        {
            "model": model,
            "replicas": {
                "stages": stages,
                "compression": draw(st.sampled_from([1, 2, 8, "auto"])),
                "anchor": draw(st.sampled_from(["complement", "embedding"])),
                "balance": draw(st.sampled_from(["memory", "compute"])),
                "ngrams": ngrams,
                "ngram_width": draw(st.sampled_from([0, 7])) if ngrams else 0,
            },
            "inner": {"microbatch": microbatch, "sequences": microbatch * draw(st.integers(1, 5))},
        }
    )


manifests = st.composite(sizes)()


def operations(manifest: Manifest, stage: int, layers: int) -> Fraction:
    """Of a stage that would have so many layers, forward and backward for one token: as the module's words say."""
    model, last = manifest.model, manifest.replicas.stages - 1
    matrices = sum(shape[0] * shape[1] for shape in layer_layout(model, 0).values() if len(shape) == 2)
    total = layers * (6 * matrices + 6 * model.context * model.d)
    if manifest.compressed:
        borders = (1 if stage else 0) + (1 if stage != last else 0)
        factored = manifest.replicas.factored
        total += (borders + (1 if factored and not stage else 0)) * 4 * model.d * manifest.k
    return Fraction(total + (6 * model.d * model.vocabulary if stage == last else 0))


def device_bytes(manifest: Manifest, stage: int, layers: int) -> Fraction:
    """Of the same: 16 for what it trains, 4 for what it keeps, but for norms and logits."""
    model, last = manifest.model, manifest.replicas.stages - 1
    trained = layers * sum(shape[0] * shape[1] for shape in layer_layout(model, 0).values() if len(shape) == 2)
    trained += model.vocabulary * model.d if stage == last else 0
    if stage == 0:
        factored = manifest.compressed and manifest.replicas.factored
        trained += model.vocabulary * (manifest.k if factored else model.d)
    elif ngrams := manifest.replicas.ngrams:
        width = manifest.replicas.ngram_width or model.d // 8
        trained += model.vocabulary * width * {1: 1, 2: 1 + 4, 3: 1 + 4 + 4}[ngrams]
    kept = model.vocabulary * model.d if manifest.compressed else 0
    tokens = manifest.inner.microbatch * model.context
    in_flight = min(manifest.replicas.stages - stage, manifest.inner.microbatches)
    kept += in_flight * tokens * layers * (20 * model.d + 4 * model.ffn)
    return Fraction(16 * trained + 4 * kept)


@given(manifests)
def test_costs_are_those_of_the_layout(manifest: Manifest):
    model, inner, stages = manifest.model, manifest.inner, manifest.replicas.stages
    looked_up = manifest.ngrams.values(model.vocabulary)
    k = manifest.k if manifest.compressed else 0
    group = GroupSizes(k, manifest.replicas.factored, inner.microbatch, inner.microbatches, looked_up)
    pairs = (compute_costs(model, stages, group), operations), (memory_costs(model, stages, group), device_bytes)
    for costs, reference in pairs:
        for stage, cost in enumerate(costs):
            for layers in (1, 5):
                assert cost.fixed + layers * cost.a_layer == reference(manifest, stage, layers)


@given(manifests, st.sampled_from(["memory", "compute"]))
def test_a_run_is_cut_so_that_its_dearest_stage_costs_least(manifest: Manifest, balance: Balance):
    tables = manifest.model_dump(mode="json")
    tables["replicas"] = {**tables["replicas"], "balance": balance}
    tables["replicas"].pop("layers", None)
    cut = check_manifest(tables).replicas.layers
    cost = operations if balance == "compute" else device_bytes

    def worst(counts: tuple[int, ...]) -> Fraction:
        return max(cost(manifest, stage, count) for stage, count in enumerate(counts))

    assert worst(cut) == min(map(worst, every_cut(manifest.model.layers, manifest.replicas.stages)))


def test_an_uncompressed_stages_operations_are_the_models_together():
    manifest = small_manifest(replicas={"compression": 1, "layers": [1, 2]})
    norms = 6 * sum(
        elements({name: shape}) for name, shape in layer_layout(manifest.model, 0).items() if len(shape) == 1
    )
    costs = compute_costs(manifest.model, 2, GroupSizes(0, True, 1, 1))
    together = sum(cost.fixed + count * cost.a_layer for count, cost in zip((1, 2), costs, strict=True))
    assert together == operations_per_token(manifest) - 3 * norms - 6 * manifest.model.d


@pytest.mark.parametrize(
    ("preset", "stages", "memory", "compute"),
    [
        ("178m", 4, (1, 2, 2, 4), (3, 3, 2, 1)),
        ("512m", 4, (1, 2, 3, 6), (4, 3, 3, 2)),
        ("1b", 4, (2, 3, 4, 7), (4, 4, 4, 4)),
        ("nano", 2, (1, 3), (3, 1)),
    ],
)
def test_the_papers_models_are_cut_for_ever_as_they_are_now(
    preset: str, stages: int, memory: tuple[int, ...], compute: tuple[int, ...]
):
    """A run made by a version is joined with the next, and its operator keeps `balance` in `run.toml`."""
    for balance, cut in (("memory", memory), ("compute", compute)):
        tables = {"model": {"preset": preset}, "replicas": {"stages": stages, "balance": balance}}
        assert check_manifest(tables).replicas.layers == cut
