"""A swarm on prepared text has the lab's losses and digests, wherever its blocks come from."""

import json
from pathlib import Path

import pytest
import torch

from bootstrap.data.prepare import PrepareRequest, prepare_text
from bootstrap.genesis import load_run
from peer.lab.reference_run import Lab
from protocol.events.activity import Evaluated, Progress, RoundDone
from protocol.events.event import Event
from tests.reference.mirror import mirror
from tests.reference.processes import TEXT, Peer, finish, hetpeer, serving, start

RUN = """
[model]
preset = "pico"
layers = 2
context = 64
[replicas]
groups = 1
datacenters = 1
stages = 2
[inner]
steps = 4
sequences = 4
microbatch = 2
[outer]
rounds = 3
[evaluation]
sequences = 8
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some dozen blocks in several shards."""
    here = tmp_path_factory.mktemp("text")
    (here / "texts").mkdir()
    for number, text in enumerate(TEXT.split("\n\n")):
        with (here / "texts" / f"{number % 40}.txt").open("a") as file:
            file.write(f"{text}\n\n")
    wanted = PrepareRequest([str(here / "texts")], train_tokenizer=400, held_out=0.1, block_tokens=512, shard_blocks=20)
    prepare_text(wanted, here / "prepared", lambda doing, done, total: None)
    return here / "prepared"


def expected(run: Path) -> list[Event]:
    torch.set_num_threads(1)
    said: list[Event] = []
    Lab.open(load_run(run), run, torch.device("cpu")).run(said.append)
    return said


def check(swarm: list[list[Event]], lab: list[Event]) -> None:
    rounds = {event.round: event for event in lab if isinstance(event, RoundDone)}
    for process in swarm:
        done = [event for event in process if isinstance(event, RoundDone)]
        assert [event.round for event in done] == [1, 2, 3]
        assert all(event.digests.items() <= rounds[event.round].digests.items() for event in done)
    evaluated = [event for event in swarm[2] if isinstance(event, Evaluated)]
    assert evaluated == [event for event in lab if isinstance(event, Evaluated)]


def peers(ticket: object, place: Path, *whole: str) -> list[list[Event]]:
    def peer(*arguments: str):
        where = ["--dir", str(place / "-".join(arguments[:3])), "--device", "cpu", "--threads", "1"]
        return start(arguments[0], str(ticket), *arguments[1:], *where)

    return finish([peer("join", "--stage", "0"), peer("join", "--stage", "1"), peer("replica", *whole)])


def test_volunteers_read_mirrors_one_of_which_lies_and_a_datacenter_its_own_copy(tmp_path: Path, folder: Path):
    with mirror(folder, "wrong bytes") as lies, mirror(folder) as good:
        urls = ["--mirror", lies.url, "--mirror", good.url]
        with serving(RUN, tmp_path / "run", data=["--data", str(folder), *urls]) as ticket:
            swarm = peers(ticket, tmp_path, "--data", str(folder))
            check(swarm, expected(tmp_path / "run" / "b"))
    assert good.asked
    assert {name for name, _, _ in good.asked} <= {path.name for path in folder.glob("train-*.bin")}
    assert sum("other bytes" in each.doing for each in swarm[0] if isinstance(each, Progress)) == bool(lies.asked)


def test_without_mirrors_the_operators_node_gives_the_blocks(tmp_path: Path, folder: Path):
    with serving(RUN, tmp_path / "run", data=["--data", str(folder)]) as ticket:
        swarm = peers(ticket, tmp_path)
        check(swarm, expected(tmp_path / "run" / "b"))
    assert list((tmp_path / "join---stage-0" / "blocks").iterdir())
    assert not (tmp_path / "join---stage-1" / "blocks").exists(), "later stages read no text"


def test_an_export_from_the_swarm_is_evaluated_on_held_out_text_that_a_node_gives(tmp_path: Path, folder: Path):
    run = RUN.replace("groups = 1", "groups = 0").replace("rounds = 3", "rounds = 500")
    with serving(run, tmp_path / "run", data=["--data", str(folder)]) as ticket:
        own = ["--dir", str(tmp_path / "datacenter"), "--device", "cpu", "--threads", "1"]
        with Peer("replica", str(ticket), *own) as replica:
            replica.wait_for(Evaluated, lambda event: event.round == 2)
            done = hetpeer("export", str(ticket), "--out", str(tmp_path / "model"), "--evaluate", "--json")
            assert done.returncode == 0, done.stdout + done.stderr
            row = json.loads(done.stdout.splitlines()[-1])
            evaluated = replica.wait_for(Evaluated, lambda event: event.round == row["round"])
        assert (row["loss"], row["loss_plain"]) == pytest.approx((evaluated.loss, evaluated.loss_plain), abs=1e-6)
