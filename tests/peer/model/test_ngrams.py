"""What stages look up by the last tokens: which rows, where they are added, and that they are taken out again.

That stages with tables are the plain model in logits and gradients, try `test_stage.py` and `test_language_model.py`.
"""

import pytest
import torch
from torch import Tensor

from peer.model.ngrams import Ngrams, ngram_rows
from peer.model.stage import Stage
from protocol.errors import ManifestError
from protocol.manifest import Manifest, check_manifest
from protocol.model_sizes import NgramTables
from tests.reference.llama import chosen_row

SIZES = {"layers": 3, "d": 16, "heads": 2, "kv_heads": 1, "ffn": 20, "context": 8, "vocabulary": 300}


def manifest(ngrams: int, width: int = 0) -> Manifest:
    replicas = {"stages": 3, "ngrams": ngrams, "ngram_width": width}
    return check_manifest({"model": SIZES, "replicas": replicas})


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_row_is_chosen_by_the_last_tokens_alone(n: int, dtype: torch.dtype) -> None:
    texts = [[5, 7, 5, 7, 9], [1, 7, 5, 7, 9], [0, 0, 0, 1, 7], [2**18 - 1] * 5]
    found_BL = ngram_rows(torch.tensor(texts, dtype=dtype), n, 4 * 2**18)
    assert found_BL.tolist() == [[chosen_row(text, at, n, 4 * 2**18) for at in range(5)] for text in texts]
    assert found_BL[0, -1] == found_BL[1, -1], "what is further back plays no part"
    assert n == 1 or found_BL[2, 0] != found_BL[2, 1], "no token is not token 0"


def test_rows_lie_in_the_first_coordinates() -> None:
    ngrams = Ngrams(300, NgramTables(most=2, width=5, layers=(1,)))
    for table_nr in ngrams.parameters():
        torch.nn.init.normal_(table_nr)
    tokens_BL = torch.tensor([[3, 299, 3]])
    found_BLD = ngrams(tokens_BL, 16)
    tables = dict(ngrams.named_parameters())
    for at in range(3):
        rows = [tables[str(n)][chosen_row(tokens_BL[0].tolist(), at, n, len(tables[str(n)]))] for n in (1, 2)]
        torch.testing.assert_close(found_BLD[0, at], torch.cat((rows[0] + rows[1], torch.zeros(11))))


def silent(stage: Stage) -> Stage:
    """A stage whose layers add nothing."""
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            parameter.normal_() if name.startswith("model.ngrams") else parameter.zero_()
    return stage


def test_what_a_stage_adds_leaves_behind_its_layers() -> None:
    run, seen = manifest(3, 7), list[Tensor]()
    middle = silent(Stage(run, 1))
    middle.model.layers["1"].register_forward_pre_hook(lambda layer, given: seen.append(given[0]))
    x_BLD, tokens_BL = torch.randn(2, 7, 16), torch.randint(300, (2, 7))
    left_BLD = middle(x_BLD, tokens_BL)
    assert torch.allclose(left_BLD, x_BLD, atol=1e-5)
    assert (seen[0] - x_BLD)[..., :7].norm() > 1, "the layers see it"
    assert torch.equal(seen[0][..., 7:], x_BLD[..., 7:])


def test_the_first_stage_and_a_run_without_them_have_none() -> None:
    assert not list(Stage(manifest(3), 0).model.ngrams.parameters())
    assert not list(Stage(manifest(0), 1).model.ngrams.parameters())
    assert [tuple(each.shape) for each in Stage(manifest(2), 2).model.ngrams.parameters()] == [(300, 2), (1200, 2)]


@pytest.mark.parametrize(
    ("replicas", "said"),
    [
        ({"ngrams": 1, "stages": 1}, "stages = 1"),
        ({"ngram_width": 3}, "ngrams = 0 leaves out"),
        ({"ngrams": 4}, "ngrams"),
        ({"ngrams": 1, "ngram_width": 17}, "more than model.d"),
    ],
)
def test_tables_that_cannot_be_are_refused(replicas: dict[str, int], said: str) -> None:
    with pytest.raises(ManifestError, match=said):
        check_manifest({"model": SIZES, "replicas": {"stages": 3} | replicas})
