"""A manifest names an architecture, and those that name none are as they always were."""

import subprocess
import sys

import pytest

from protocol.architectures import ARCHITECTURES
from protocol.errors import ManifestError
from protocol.manifest import check_manifest
from tests.reference.small_manifest import SMALL, small_manifest


def test_the_usual_architecture_is_not_in_the_digest():
    named = small_manifest(model={"architecture": "llama"})
    assert named.digest == small_manifest().digest
    assert b"architecture" not in named.canonical()


@pytest.mark.parametrize("name", ["gpt", "", 3, ["llama"], None])
def test_an_unknown_architecture_is_refused(name: object):
    with pytest.raises(ManifestError, match=r"manifest: model: unknown architecture .*; there are llama$"):
        check_manifest({"model": {**SMALL["model"], "architecture": name}})


def test_errors_name_the_field_of_the_architecture():
    with pytest.raises(ManifestError, match=r"^manifest: model\.heads: "):
        small_manifest(model={"heads": 0})


def test_whoever_reads_a_layout_needs_no_torch():
    program = "import sys, protocol.layout; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_layers_parameters_are_those_of_its_layout(name: str):
    architecture = ARCHITECTURES[name]
    for preset in list(architecture.presets)[:3]:
        sizes = architecture.sizes(**architecture.presets[preset], architecture=name)
        for module, layout in (
            (architecture.layer_parts().make_layer(sizes), architecture.layer_layout(sizes)),
            (architecture.layer_parts().make_norm(sizes), architecture.norm_layout(sizes)),
        ):
            assert [(name, tuple(tensor.shape)) for name, tensor in module.named_parameters()] == [*layout.items()]
