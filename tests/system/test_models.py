"""A model leaves a run of real processes in the format everyone uses, and begins another run where it stopped."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from peer.cli.__main__ import app
from peer.export.collected import collect
from peer.export.written import write_export
from peer.model.language_model import LanguageModel
from protocol.errors import ResourceError
from protocol.events.activity import Finished, RoundDone, Serving
from protocol.run.hugging_face import open_checkpoint
from tests.reference.processes import RUN, SECONDS, TEXT, Peer, events, finish, hetpeer, serving, start

ROUNDS = 12
UNEVEN = (
    RUN.replace("nano", "pico").replace("layers = 2", "layers = 3").replace("[replicas]", "[replicas]\nlayers = [1, 2]")
)
TINY = UNEVEN.format(datacenters=1, sequences=4) + f"steps = 2\n[outer]\nrounds = {ROUNDS}\npatience = 100.0\n"
PROMPT = "7 volunteers walked to the"


def printed(*arguments: str, code: int = 0) -> str:
    """What a command prints that needs no swarm."""
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == code, done.output
    return done.output


def export(*arguments: str) -> dict[str, Any]:
    """What `hetpeer export` says at its end."""
    found: dict[str, Any] = json.loads(printed("export", *arguments, "--threads", "1", "--json").splitlines()[-1])
    return found


def export_live(ticket: str, out: Path) -> dict[str, Any]:
    """From the swarm, by a process of its own."""
    done = hetpeer("export", ticket, "--out", str(out), "--threads", "1", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@dataclass(frozen=True)
class Ended:
    """A run that has ended, in the folders of its peers (`b` is the bootstrap node's); the digests of each round; and
    what `hetpeer export` told in its midst, from the folder of a peer at work and from the swarm, and `last` when all
    peers had gone, from the swarm, where the node held the model. Its model is in `model`."""

    folder: Path
    digests: dict[int, dict[str, str]]
    at_work: dict[str, Any]
    live: dict[str, Any]
    last: dict[str, Any]
    exported: dict[str, Any]

    @property
    def model(self) -> Path:
        return self.folder / "model"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    here = tmp_path_factory.mktemp("models") / "run"
    with serving(TINY, here, more=["--keep-model"]) as ticket, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HETPEER_HOME", str(here / "home"))

        def where(name: str) -> list[str]:
            return [str(ticket), "--dir", str(here / name), "--device", "cpu", "--threads", "1"]

        trained = [start("join", "--stage", str(stage), *where(f"stage-{stage}")) for stage in (0, 1)]
        with Peer("replica", *where("datacenter")) as datacenter:
            datacenter.wait_for(RoundDone)
            at_work = export(str(here / "datacenter"), "--out", str(here / "at-work"))
            live = export_live(str(ticket), here / "live")
            finish(trained)
            datacenter.wait_for(Finished)
        last = export_live(str(ticket), here / "last")
        exported = export(str(here / "datacenter"), "--out", str(here / "model"), "--evaluate")
        digests = {event.round: event.digests for event in datacenter.said if isinstance(event, RoundDone)}
        yield Ended(here, digests, at_work, live, last, exported)


def test_the_model_is_the_state_that_the_peers_tell(run: Ended):
    assert run.exported["round"] == ROUNDS
    assert run.exported["digests"] == run.digests[ROUNDS]
    assert sorted(run.exported["contributors"].values()) == [ROUNDS] * 3
    assert run.exported["tokens_at_most"] == 2 * ROUNDS * 2 * 4 * 128
    assert 0 < run.exported["loss_plain"] < run.exported["loss"] < 8


def test_from_the_folder_of_a_peer_at_work_it_is_the_state_of_the_round_it_names(run: Ended):
    assert 1 <= run.at_work["round"] <= ROUNDS
    assert run.at_work["digests"] == run.digests[run.at_work["round"]]


def test_when_all_have_gone_the_bootstrap_node_holds_the_model_and_its_folder_has_it(run: Ended):
    assert (run.last["round"], run.last["digests"]) == (ROUNDS, run.digests[ROUNDS])
    assert collect([run.folder / "b"], None, lambda event: None).digests == run.digests[ROUNDS]


def test_from_the_swarm_it_is_the_state_of_the_round_it_names(run: Ended):
    assert 1 <= run.live["round"] <= ROUNDS
    assert run.live["digests"] == run.digests[run.live["round"]]


def test_a_swarm_of_nobody_has_no_model(run: Ended, tmp_path: Path):
    with serving(TINY, tmp_path / "run") as ticket:
        done = hetpeer("export", str(ticket), "--out", str(tmp_path / "m"))
    assert (done.returncode, "nobody is in the run now" in done.stderr) == (5, True)
    assert not (tmp_path / "m").exists()


def test_what_is_neither_a_ticket_nor_a_folder_is_named(run: Ended, tmp_path: Path):
    out = "--out", str(tmp_path / "m")
    assert "neither a ticket nor a folder" in printed("export", str(tmp_path / "nowhere"), *out, code=2)
    both = str(run.folder / "datacenter"), "hetpeer1-abc"
    assert "hetpeer1-abc is no folder" in printed("export", *both, *out, code=2)
    (tmp_path / "empty").mkdir()
    assert "there is no run in" in printed("export", str(tmp_path / "empty"), *out, code=4)


def test_the_folders_of_volunteers_together_hold_the_model(run: Ended, tmp_path: Path):
    own = shutil.copytree(run.folder / "b", tmp_path / "b", ignore=shutil.ignore_patterns("observer"))
    folders = [str(own), *(str(run.folder / name) for name in ("stage-0", "stage-1"))]
    assert "stage-0 after round" in printed("export", *folders[::2], "--out", str(tmp_path / "half"), code=4)
    assert not (tmp_path / "half").exists()
    together = export(*folders, "--out", str(tmp_path / "whole"))
    assert (together["round"], together["digests"]) == (ROUNDS, run.digests[ROUNDS])


@pytest.mark.parametrize("round", [ROUNDS - 1, ROUNDS // 2, 1])
def test_an_earlier_round_is_there_as_long_as_it_is_kept(run: Ended, tmp_path: Path, round: int):
    said = export(str(run.folder / "datacenter"), "--out", str(tmp_path / "m"), "--round", str(round))
    assert said["digests"] == run.digests[round]


def test_a_round_that_is_not_there_is_named(run: Ended, tmp_path: Path):
    asked = str(run.folder / "datacenter"), "--out", str(tmp_path / "m"), "--round"
    assert f"round {ROUNDS} is the last" in printed("export", *asked, str(ROUNDS + 1), code=2)
    assert not list(tmp_path.iterdir())


def test_a_round_of_which_not_all_is_kept_is_refused(run: Ended, tmp_path: Path):
    folder = copy_of_the_datacenters(run, tmp_path)
    min((folder / "contributions" / "stage-1").glob("00000001-*")).unlink()
    for state in (folder / "snapshots").glob("stage-1-00000001.*"):
        state.unlink()  # whether round 1 was closed alone, or with the next, is chance
    with pytest.raises(ResourceError, match=r"no longer has what 1 peer\(s\) contributed to round 1"):
        collect([folder], 1, lambda event: None)
    assert collect([folder], None, lambda event: None).digests == run.digests[ROUNDS]


def copy_of_the_datacenters(run: Ended, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run.folder / "datacenter", tmp_path / "copy"))


def test_a_damaged_contribution_is_told_and_not_left_out(run: Ended, tmp_path: Path):
    folder = copy_of_the_datacenters(run, tmp_path)
    blob = max((folder / "contributions" / "stage-1").glob("????????-*"))
    blob.write_bytes(blob.read_bytes()[:-1] + b"\0\0")
    with pytest.raises(ResourceError, match=r"1 of \d+ contributions in .*stage-1 are damaged"):
        collect([folder], None, lambda event: None)


def test_a_damaged_state_is_passed_over_for_the_one_before(run: Ended, tmp_path: Path):
    folder = copy_of_the_datacenters(run, tmp_path)
    last, *_ = sorted((folder / "snapshots").glob("stage-0-*.grid"), reverse=True)
    data = bytearray(last.read_bytes())
    data[7] ^= 1
    last.write_bytes(data)
    assert collect([folder], None, lambda event: None).digests == run.digests[ROUNDS]


def test_folders_that_hold_different_states_are_refused(run: Ended, tmp_path: Path):
    folder = copy_of_the_datacenters(run, tmp_path)
    max((folder / "contributions" / "stage-1").glob("????????-*")).unlink()
    with pytest.raises(ResourceError, match="2 different states of stage-1"):
        collect([run.folder / "datacenter", folder], None, lambda event: None)


def test_files_that_are_not_the_runs_are_refused(run: Ended, tmp_path: Path):
    folder = copy_of_the_datacenters(run, tmp_path)
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + " ")
    with pytest.raises(ResourceError, match=r"tokenizer\.json is damaged"):
        collect([folder], None, lambda event: None)


def test_collecting_changes_nothing_in_a_folder(run: Ended):
    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (run.folder / "datacenter").rglob("*")}

    before = files()
    collect([run.folder / "datacenter"], None, lambda event: None)
    assert files() == before


def test_transformers_loads_it_and_computes_what_our_model_does(run: Ended):
    theirs, tokenizer = AutoModelForCausalLM.from_pretrained(run.model), AutoTokenizer.from_pretrained(run.model)
    checkpoint = open_checkpoint(run.model)
    ours = LanguageModel(checkpoint.model, checkpoint.ngrams)
    ours.load(lambda name: torch.from_numpy(checkpoint.read(name)))
    tokens = tokenizer(TEXT[:400], return_tensors="pt")["input_ids"][:, :128]
    with torch.no_grad():
        expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens), expected, rtol=0, atol=1e-5)
    assert tokenizer.decode(tokens[0]) == TEXT[: len(tokenizer.decode(tokens[0]))]
    assert tokenizer.eos_token_id == theirs.config.eos_token_id == 0


def test_sample_writes_what_transformers_generates(run: Ended):
    said = json.loads(printed("sample", str(run.model), PROMPT, "--tokens", "20", "--temperature", "0", "--json"))
    model, tokenizer = AutoModelForCausalLM.from_pretrained(run.model), AutoTokenizer.from_pretrained(run.model)
    prompt = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=False)
    found = model.generate(**prompt, max_new_tokens=20, do_sample=False, pad_token_id=0)[0]
    found = found[prompt["input_ids"].shape[1] :]
    assert said["tokens"] == found.tolist()
    assert said["text"] == tokenizer.decode(found, skip_special_tokens=True)
    folder = str(run.folder / "datacenter")
    shown = printed("sample", folder, PROMPT, "--tokens", "20", "--temperature", "0")
    assert shown == PROMPT + said["text"] + "\n"


def test_a_model_is_written_over_only_by_force_and_nothing_else_ever(run: Ended, tmp_path: Path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "thesis.txt").write_text("three years")
    source, out = str(run.folder / "datacenter"), ("--out", str(tmp_path / "m"))
    assert "not empty" in printed("export", source, *out, code=2)
    assert "thesis.txt" in printed("export", source, *out, "--force", code=2)
    (tmp_path / "m" / "thesis.txt").unlink()
    export(source, *out)
    assert "--force" in printed("export", source, *out, code=2)
    export(source, *out, "--force")
    assert [each.name for each in tmp_path.iterdir()] == ["m"]


def test_ctrl_c_leaves_nothing_half_made_and_what_was_there(run: Ended, tmp_path: Path):
    def interrupted(event: object) -> None:
        if "writing" in str(event):
            raise KeyboardInterrupt

    for out in (tmp_path / "new", Path(shutil.copytree(run.model, tmp_path / "old"))):
        collected = collect([run.folder / "datacenter"], None, lambda event: None)
        with pytest.raises(KeyboardInterrupt):
            write_export(collected, out, None, interrupted)
    assert [each.name for each in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old" / "model.safetensors").read_bytes() == (run.model / "model.safetensors").read_bytes()


def test_a_run_that_begins_from_it_begins_at_its_loss(run: Ended, tmp_path: Path):
    toml, text = tmp_path / "run.toml", run.folder / "text.txt"
    imported = json.loads(printed("import", str(run.model), "--out", str(toml), "--json").splitlines()[-1])
    assert (imported["basis"], imported["parameters"]) == (True, run.exported["parameters"])
    files = ["--data", str(text), "--weights", str(run.model), "--dir", str(tmp_path / "b")]
    with start("bootstrap", str(toml), "--listen", "127.0.0.1:0", *files) as node:
        next(event for event in events(node) if isinstance(event, Serving))
        node.communicate(timeout=SECONDS)
    begun = export(str(tmp_path / "b"), "--out", str(tmp_path / "m"), "--evaluate")
    assert begun["round"] == 0
    for each in ("loss", "loss_plain"):  # through the boundaries too: the basis has come along
        assert begun[each] == run.exported[each]
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == (run.model / "model.safetensors").read_bytes()
