"""The operator's guide has every field of run.toml, with its default."""

import re
import tomllib

import pytest
from pydantic_core import PydanticUndefined

from protocol.architectures.llama.sizes import LlamaSizes
from protocol.manifest import Manifest
from tests.docs.pages import ROOT

GUIDE = (ROOT / "docs/operator.md").read_text(encoding="utf-8")
FROM_PRESET = "by the preset"


def rows(table: str) -> dict[str, str]:
    """The second column by the first, of the rows under a table's heading."""
    section = GUIDE.split(f"\n### `[{table}]`")[1].split("\n#")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", section, re.MULTILINE))


@pytest.mark.parametrize("table", Manifest.model_fields)
def test_it_has_each_field_and_its_default(table: str):
    section = LlamaSizes if table == "model" else Manifest.model_fields[table].annotation
    assert section is not None
    wanted = {name: field.default for name, field in section.model_fields.items()}
    told = rows(table)
    assert list(told) == list(wanted)
    for name, default in wanted.items():
        if default is PydanticUndefined:
            assert told[name] == FROM_PRESET
            continue
        shown = tomllib.loads(f"x = {told[name].strip('`')}")["x"]
        assert shown == (list(default) if isinstance(default, tuple) else default), name
