"""A swarm against the lab, bit by bit: the daemon in virtual time with every choice of the manifest that changes the
mathematics. `tests/system/test_parity.py` does the same with real processes for a few of them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bootstrap.genesis import load_run
from peer.lab.reference_run import Lab
from protocol.events.activity import Evaluated, RoundDone
from protocol.events.event import Event
from tests.world import test_cases
from tests.world.runs import files_of
from tests.world.test_cases import MakeWorld, all_end_well, join, manifest, told

world = test_cases.world

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "2-bit values over senders, eta from 0.8 to 0.24": {
        "replicas": {"compression": 4},
        "outer": {"values": "2bit", "aggregate": "senders", "learning_rate": 0.8, "final_learning_rate": 0.3},
    },
    "other chunks, a stage with most layers": {
        "replicas": {"layers": [1, 3]},
        "outer": {"chunk_side": 24, "top_k": 7},
    },
    "no compression, fp32": {"replicas": {"compression": 1, "wire": "fp32"}},
    "integers between stages": {"replicas": {"compression": 2, "wire": "int4", "gradient_wire": "int8"}},
    "clipped to the medians": {
        "replicas": {"compression": 4},
        "outer": {"clip": "median", "aggregate": "senders"},
    },
    "no datacenter, an observer evaluates": {"replicas": {"datacenters": 0}, "outer": {"beta": 0.5}},
    "overlap": {"replicas": {"compression": 4}, "outer": {"overlap": True}},
    "Muon": {"replicas": {"compression": 4}, "inner": {"optimizer": "muon"}},
    "Muon in the subspace, the embedding as anchor, integers": {
        "replicas": {"compression": 2, "wire": "int4", "anchor": "embedding"},
        "inner": {"optimizer": "muon", "subspace_steps": True},
    },
    "inner steps that overlap": {"replicas": {"compression": 4}, "inner": {"overlap": 2}},
    "inner steps and rounds that overlap, Muon, n-gram tables": {
        "replicas": {"compression": 2, "wire": "int4", "anchor": "embedding", "ngrams": 3, "ngram_width": 5},
        "inner": {"overlap": 1, "optimizer": "muon"},
        "outer": {"overlap": True},
    },
    "overlap, an observer evaluates": {"replicas": {"datacenters": 0}, "outer": {"overlap": True, "values": "2bit"}},
}


def lab(files: Path) -> list[Event]:
    said: list[Event] = []
    Lab.open(load_run(files), files, torch.device("cpu")).run(said.append)
    return said


@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_and_digests_are_the_labs(world: MakeWorld, variant: str):
    given = VARIANTS[variant]
    tables: dict[str, dict[str, Any]] = {
        "model": {"layers": 4, "d": 32, "heads": 4, "kv_heads": 2, "ffn": 48},
        "replicas": {"groups": 1, "datacenters": 1, "stages": 2} | given.get("replicas", {}),
        "inner": {"steps": 4, "sequences": 6, "microbatch": 2, "learning_rate": 1e-2, "warmup": 4}
        | given.get("inner", {}),
        "outer": {"rounds": 4, "patience": 100.0} | given.get("outer", {}),
    }
    expected = lab(files_of(manifest(**tables)))
    run = world(**tables)
    peers = [
        join(run, "first", "volunteer", 0),
        join(run, "last", "volunteer", 1, settings={"memory": "recompute"}),
        join(run, "whole", "observer" if "observer" in variant else "datacenter"),
    ]
    all_end_well(run, *peers, seconds=120)
    rounds = {event.round: event for event in expected if isinstance(event, RoundDone)}
    assert len(rounds) == 4
    for peer in peers:
        done = told(peer, RoundDone)
        assert [event.round for event in done] == [1, 2, 3, 4]
        for event in done:
            assert event.digests.items() <= rounds[event.round].digests.items(), peer.name
            assert event.contributions.items() <= rounds[event.round].contributions.items(), peer.name
    evaluated = told(peers[2], Evaluated)
    assert len(evaluated) == 4
    assert evaluated == [event for event in expected if isinstance(event, Evaluated)]
