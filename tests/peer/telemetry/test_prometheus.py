"""What Prometheus is told of a daemon, read back by its own parser."""

import urllib.request

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from peer.telemetry.prometheus import Metrics, served, where
from peer.telemetry.status import EventStream, Status
from protocol.errors import ResourceError, UserError
from protocol.events.activity import Evaluated, GroupBroken, GroupFormed, Joined, Pulse, Refused, RoundDone, StepDone
from protocol.events.decisions import Avoided, Placed
from protocol.events.event import Event

JOINED = Joined("QmAbcdefghij", "volunteer", 1, 0, "h:1")
STORY: list[Event] = [
    JOINED,
    Placed(1, 12, 20, "its owner asked for this stage"),
    GroupFormed("QmL", 0, ["QmL", "QmAbcdefghij"]),
    Pulse(0, 0, 0, 0, 5, 1),
    StepDone(3, 0, 5.25, 1000),
    StepDone(3, 1, 5.0, 1000),
    Pulse(2000, 10, 500, 20, 5, 2),
]


def counted(*events: Event) -> Metrics:
    now = iter(range(1, 1000))
    status = Status(lambda: float(next(now)))
    metrics = Metrics(status, lambda: 12345)
    for event in events:
        EventStream([metrics], status)(event)
    return metrics


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = list(text_string_to_metric_families(text))
    assert all(each.documentation for each in families)
    found = [each for family in families for each in family.samples]
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for each in found}


def told(*events: Event) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return samples(generate_latest(counted(*events).registry).decode())


def test_every_number_has_a_name_of_ours_and_a_help():
    found = told(*STORY)
    assert all(name.startswith("hetpeer_") for name, _ in found)
    value = {name: each for (name, labels), each in found.items() if not labels}
    assert value["hetpeer_round"] == 3
    assert value["hetpeer_step"] == 2
    assert value["hetpeer_loss"] == 5.0
    assert value["hetpeer_tokens_total"] == 2000
    assert value["hetpeer_tokens_per_second"] == 1000
    assert value["hetpeer_group_members"] == 2
    assert (value["hetpeer_peers_known"], value["hetpeer_peers_silent"]) == (5, 2)
    assert value["hetpeer_memory_bytes"] == 12345
    assert (value["hetpeer_inner_step_seconds_count"], value["hetpeer_inner_step_seconds_sum"]) == (1, 1)
    assert found["hetpeer_sent_bytes_total", (("kind", "pipeline"),)] == 2000
    assert found["hetpeer_received_bytes_total", (("kind", "bulk"),)] == 20
    assert found["hetpeer_state", (("hetpeer_state", "training"),)] == 1


def test_rounds_losses_and_troubles_are_counted():
    troubles: list[Event] = [
        RoundDone(3, 40.0, 1024, {}, {}, 0, 0),
        Evaluated(3, 4.5, 4.25),
        Refused("QmB", "garbage"),
        Avoided("QmB", 10.0, "garbage"),
        GroupBroken("QmL", 4, 0, "gone"),
        JOINED,
    ]
    found = told(*STORY, *troubles)
    for name in ("refused", "avoided", "groups_broken", "reconnects"):
        assert found[f"hetpeer_{name}_total", ()] == 1, name
    assert found["hetpeer_round_seconds_sum", ()] == 40
    assert found["hetpeer_held_out_loss", (("mode", "plain"),)] == 4.25
    assert found["hetpeer_group_members", ()] == 0


def test_counters_go_on_where_a_peer_begins_anew_after_a_pause():
    found = told(*STORY, JOINED, Pulse(0, 0, 0, 0, 5, 0), Pulse(300, 0, 0, 0, 5, 0))
    assert found["hetpeer_sent_bytes_total", (("kind", "pipeline"),)] == 2300


def test_what_others_call_themselves_makes_no_series():
    before, after = told(*STORY), told(*STORY, *(Refused(f"Qm{number}", "no") for number in range(100)))
    assert before.keys() == after.keys()


def test_they_are_served_where_asked_on_loopback_and_no_longer_than_the_block():
    metrics = counted(*STORY)
    with served(metrics.registry, "0") as url:
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert samples(answer.read().decode())["hetpeer_round", ()] == 3
        taken = url.rsplit(":", 1)[1].removesuffix("/metrics")
        with pytest.raises(ResourceError, match="give another port"), served(counted().registry, taken):
            pass
    with pytest.raises(OSError):  # noqa: PT011
        urllib.request.urlopen(url, timeout=10)


def test_an_address_is_a_port_or_a_host_and_a_port():
    assert where("9477") == ("127.0.0.1", 9477)
    assert where("0.0.0.0:9477") == ("0.0.0.0", 9477)
    assert where("[::1]:0") == ("::1", 0)
    for wrong in ("", "host", "99999", "a:b"):
        with pytest.raises(UserError, match="--metrics takes"):
            where(wrong)
