"""The hosts that the benchmark measures on, and what it takes for the same by the model."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.shaped import case
from benchmarks.shaped.hosts import hosts, missing
from benchmarks.shaped.switch import Way, Weather

ECHO = """
import socket, sys
listening = socket.create_server((sys.argv[1], 7000))
print("up", flush=True)
connection, _ = listening.accept()
taken = 0
while data := connection.recv(65536):
    taken += len(data)
    connection.sendall(b"." if len(data) == 1 else b"")
    if taken > 1 and taken % 1_000_000 == 1:
        connection.sendall(b"!")
"""

ASK = """
import json, socket, sys, time
connection = socket.create_connection((sys.argv[1], 7000), 10)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
begun = time.monotonic()
connection.sendall(b"1"); connection.recv(1)
trip = time.monotonic() - begun
begun = time.monotonic()
connection.sendall(bytes(1_000_000)); connection.recv(1)
print(json.dumps([trip, time.monotonic() - begun]))
"""


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_hosts_have_the_delay_and_the_rate_that_they_are_given():
    """A rate can only be held from above here: a loaded machine is slower."""
    with hosts(2, 0.02) as on:
        on.limit(8, 2)
        command = [*on.enter(0), sys.executable, "-c", ECHO, on.address(0)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
            assert serving.stdout is not None
            assert serving.stdout.readline() == "up\n"
            asked = subprocess.run(
                [*on.enter(1), sys.executable, "-c", ASK, on.address(0)], capture_output=True, text=True, timeout=60
            )
            serving.kill()
    trip, seconds = json.loads(asked.stdout)
    assert trip >= 0.04
    assert seconds >= 0.9  # a megabyte at 8 Mb/s
    assert not any(name.startswith(f"hetpeer-bench-{os.getpid()}") for name in os.listdir("/run/netns"))


def test_packets_arrive_in_order_within_the_jitter_and_as_many_are_lost_as_was_asked_for():
    weather = Weather(0.03, 0.01, 0.01, seed=3)
    sent = [0.05 * number for number in range(20_000)]
    arrivals = [Way(weather, 0, 1).arrival(0.0), *map(Way(weather, 0, 1).arrival, sent)]
    there = [(at, came) for at, came in zip(sent, arrivals[1:], strict=True) if came is not None]
    assert 0.007 < 1 - len(there) / len(sent) < 0.013
    assert all(0.02 <= came - at <= 0.04 for at, came in there)
    assert sum(came - at for at, came in there) / len(there) == pytest.approx(0.03, abs=5e-4)
    assert arrivals[0] == arrivals[1]  # one seed, one luck
    assert arrivals[1:] != [*map(Way(weather, 1, 0).arrival, sent)]  # and another for each way
    quick = [came for came in map(Way(weather, 0, 1).arrival, [at / 1000 for at in sent]) if came is not None]
    assert quick == sorted(quick)


@pytest.mark.parametrize("compression", case.COMPRESSIONS)
@pytest.mark.parametrize("scaled", [case.Case(), case.Case(0.4, stages=8, microbatches=16, overlap=2)])
def test_the_scaled_run_has_the_papers_ratio_of_compute_to_bytes(compression: int, scaled: case.Case):
    manifest = scaled.manifest(compression)
    seconds = 8 * 2 * case.TOKENS * manifest.k / (100e6 * scaled.rate)
    papers = 8 * 2 * 2048 * manifest.k / 100e6
    assert seconds / scaled.passes == pytest.approx(papers / (6 * 70e9 / 4 * 2048 / 125e12))
    assert abs(manifest.replicas.compression - compression) < 0.35 * compression


def test_the_model_of_the_scaled_run_is_higher_the_quicker_the_link_and_with_less_to_carry():
    whole = case.Case()
    shares = [case.modelled(whole.manifest(8), whole, each, False) for each in case.MEGABITS]
    assert shares == sorted(shares)
    assert case.modelled(whole.manifest(8), whole, 100, True) <= shares[1]
    assert case.modelled(whole.manifest(1), whole, 100, False) < 0.5 < shares[1]


def test_only_steps_that_overlap_could_use_all_of_the_hardware():
    drained, overlapping = case.Case(microbatches=8), case.Case(microbatches=8, overlap=1)
    assert drained.ideal_seconds == pytest.approx(11 / 8 * drained.hardware_seconds)
    assert overlapping.ideal_seconds == overlapping.hardware_seconds
