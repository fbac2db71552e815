"""What Prometheus is told of a run, read back by its own parser."""

from prometheus_client.parser import text_string_to_metric_families

from bootstrap.monitor.metrics import render
from protocol.events.event import PeerState
from protocol.monitor import GroupView, PeerView, RoundView, View

NOW = 1000.0


def view(**changes: object) -> View:
    made = View(
        run_id="ab" * 32,
        now=NOW,
        started=10.0,
        stages=3,
        replicas=2,
        rounds=12,
        round=4,
        inner_steps=20,
        compression=8,
        tokens=1_000_000,
        tokens_per_second=1234.5,
        peers=[
            PeerView(id="QmA", role="volunteer", stage=0, state=PeerState.TRAINING, up=100.0, down=10.0, credit=7),
            PeerView(id="QmB", role="volunteer", stage=2, state=PeerState.LOST, relayed=True),
            PeerView(id="QmC", role="datacenter", state=PeerState.TRAINING, up=50.0),
        ],
        groups=[GroupView(replica="QmA", slot=0, members=["QmA", "", "QmB"], broken="stage 1 is missing")],
        history=[
            RoundView(round=2, began=100.0, ended=150.0, loss=5.0, loss_plain=4.5),
            RoundView(
                round=3,
                began=150.0,
                ended=190.0,
                tokens=5000,
                contributions={"QmA": 20, "QmC": 20},
                late={"QmB": "it was slow"},
                pipeline_bytes=11,
                outer_bytes=22,
                uncompressed_bytes=3300,
            ),
            RoundView(round=4, began=190.0),
        ],
        log=[],
    )
    return made.model_copy(update=changes)


def samples(shown: View) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = list(text_string_to_metric_families(render(shown).decode()))
    assert all(each.documentation for each in families)
    found = [each for family in families for each in family.samples]
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for each in found}


def test_a_group_with_an_empty_seat_is_none_that_trains_whatever_the_reason():
    group = GroupView(replica="QmA", slot=0, members=["QmA", ""])
    found = samples(view().model_copy(update={"groups": [group]}))
    assert [found["hetpeer_run_groups", (("state", state),)] for state in ("training", "broken")] == [0, 1]


def test_a_run_is_told_in_numbers():
    found = samples(view())
    assert all(name.startswith("hetpeer_run") for name, _ in found)
    assert found["hetpeer_run_info", (("run_id", "ab" * 32),)] == 1
    assert found["hetpeer_run_round", ()] == 4
    assert found["hetpeer_run_tokens_per_second", ()] == 1234.5
    assert found["hetpeer_run_peers", (("role", "volunteer"), ("state", "lost"))] == 1
    assert found["hetpeer_run_peers", (("role", "observer"), ("state", "training"))] == 0
    assert [found["hetpeer_run_stage_volunteers", (("stage", str(stage)),)] for stage in range(3)] == [1, 0, 0]
    assert found["hetpeer_run_groups", (("state", "broken"),)] == 1
    assert found["hetpeer_run_up_bytes_per_second", ()] == 150
    assert found["hetpeer_run_credit_tokens", ()] == 7
    assert found["hetpeer_run_relayed_peers", ()] == 1


def test_the_state_of_a_run_is_one_of_a_fixed_set():
    found = samples(view(state="stalled", state_since=77.0))
    states = {labels[0][1]: value for (name, labels), value in found.items() if name == "hetpeer_run_state"}
    assert states == {"gathering": 0, "training": 0, "stalled": 1, "finished": 0}
    assert found["hetpeer_run_state_since_seconds", ()] == 77.0


def test_the_last_round_is_the_last_that_has_ended_and_losses_the_last_measured():
    found = samples(view())
    assert found["hetpeer_run_last_round_seconds", ()] == 40
    assert found["hetpeer_run_last_round_contributions", ()] == 2
    assert found["hetpeer_run_last_round_late", ()] == 1
    assert found["hetpeer_run_last_round_bytes", (("kind", "uncompressed"),)] == 3300
    assert found["hetpeer_run_held_out_loss", (("mode", "compressed"),)] == 5.0


def test_a_run_that_has_just_begun_has_no_round_and_no_loss_yet():
    found = samples(view(peers=[], groups=[], history=[]))
    assert not any("last_round" in name or "loss" in name for name, _ in found)
    assert found["hetpeer_run_peers", (("role", "volunteer"), ("state", "training"))] == 0


def test_more_peers_are_no_more_series():
    many = [PeerView(id=f"Qm{number}", role="volunteer", stage=number, address="x" * number) for number in range(500)]
    assert samples(view()).keys() == samples(view(peers=many)).keys()
