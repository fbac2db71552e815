"""The machine itself, apart from any network: versions, device, cores, memory, disk, files, clock."""

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch

from peer import version
from peer.compute.capacity import DeviceName, cores, find_device, free_memory
from peer.diagnosis.finding import SET_THE_CLOCK, Finding
from peer.store.disk import SHARE, bytes_in
from peer.store.disk import free_disk as free_on_disk
from peer.telemetry.cards import card_readings
from protocol.trust.ticket import TICKET_PREFIX
from protocol.wording import size

FILES_NEEDED = 1024
"""Open at once: connections of a large run, and the contributions that are written and served."""

BUSY_SHARE = 0.25
"""The share of the cores in use by others from which no measurement of the machine counts."""

NVIDIA = Path("/proc/driver/nvidia/version")
"""The file that a driver of Nvidia's provides."""

MPS_DAEMON = "nvidia-cuda-mps-control"
"""The process by which NVIDIA's MPS is on."""

SLOW_START = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")

EARLIEST = 1767225600.0
"""2026 began; a clock before that was never set."""


def examine_machine(device: torch.device, threads: int, folder: Path) -> list[Finding]:
    """All checks that need no run."""
    return [
        versions(),
        computes_on(device),
        *(sharing_card() if device.type == "cuda" else []),
        busy(os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, cores(), threads),
        memory(device),
        disk(folder, ()),
        open_files(),
        clock_finding(time.time()),
    ]


def before_joining(device: DeviceName, now: float, nvidia: Path = NVIDIA) -> list[Finding]:
    """The warnings, at the start of a peer, of those checks that need no run, no socket and no time. `device`: as its
    owner has asked for it; `now`: seconds since 1970."""
    found = [open_files(), clock_finding(now)]
    if device == "auto" and (chosen := find_device(device)).type == "cpu":  # who asks for cpu knows
        found.insert(0, computes_on(chosen, nvidia))
    return [finding for finding in found if finding.outcome != "ok"]


def versions() -> Finding:
    """The versions that decide whether two peers understand each other, and of what computes."""
    protocol = TICKET_PREFIX.removeprefix("hetpeer").rstrip("-")
    parts = (
        f"hetpeer {version()}, protocol {protocol}",
        f"Python {platform.python_version()}",
        f"PyTorch {torch.__version__}",
        f"{platform.system()} {platform.machine()}",
    )
    return Finding("versions", ", ".join(parts))


def computes_on(device: torch.device, nvidia: Path = NVIDIA) -> Finding:
    """The device, and whether a better one lies idle: `nvidia` is there where a driver of Nvidia's is."""
    if device.type == "cuda":
        return Finding("device", f"{torch.cuda.get_device_name(device)} (cuda)")
    if device.type == "cpu" and nvidia.exists() and not torch.cuda.is_available():
        advice = "Install a PyTorch built for CUDA (pytorch.org/get-started), or --device cpu if that is what you want"
        return Finding("device", "cpu; there is an Nvidia GPU that this PyTorch cannot use", "warning", advice)
    return Finding("device", device.type)


def sharing(processes: int, served: bool) -> Finding:
    """The other processes that compute on this machine's card: they take turns on it, unless NVIDIA's MPS has `served`
    it to them all."""
    if not processes:
        return Finding("card", "no other process computes on it")
    value = f"{processes} other {'process computes' if processes == 1 else 'processes compute'} on it"
    if served:
        return Finding("card", f"{value}, side by side (MPS)")
    advice = "One process a card is quickest. NVIDIA's MPS lets several compute side by side (docs/datacenter.md)"
    return Finding("card", f"{value}, in turns", "warning", advice)


def sharing_card() -> list[Finding]:
    """The finding about the first CUDA card, where its driver can be asked."""
    readings = card_readings()
    if readings is None:
        return []
    others = [number for number in readings.processes if number != os.getpid()]
    served = any(process.info["name"] == MPS_DAEMON for process in psutil.process_iter(["name"]))
    return [sharing(len(others), served)]


def busy(load: float, available: int, threads: int) -> Finding:
    """`load`: processes that want to run, on average over the last minute."""
    value = f"{threads} of {available} cores are computed on"
    if load > BUSY_SHARE * available:
        value = f"{value}; others want {load:.1f} of them now"
        advice = "What is measured now is too slow: end what else computes here, and run this again"
        return Finding("cores", value, "warning", advice, {"load": load})
    return Finding("cores", value, numbers={"load": load})


def memory(device: torch.device) -> Finding:
    """The memory where the device computes; which stages fit is said with the stages."""
    free = free_memory(device)
    total = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else psutil.virtual_memory().total
    value = f"{size(free)} free of {size(total)}"
    return Finding("memory", value, numbers={"free": free, "total": total})


def disk(folder: Path, of_stages: Sequence[int]) -> Finding:
    """The disk where this peer would keep its files; `of_stages`: bytes for each of the run's stages, none where there
    is no run. The cheapest has to fit."""
    free, needed = free_on_disk(folder), min(of_stages, default=0)
    value = f"{size(free)} free in {folder}"
    missing = needed - bytes_in(folder)
    if missing > SHARE * free:
        advice = f"Free {size(missing / SHARE - free)} there, or give another disk's folder with --dir"
        return Finding("disk", f"{value}; the run takes {size(needed)}", "failure", advice, {"free": free})
    most = max(of_stages, default=0)
    by_stage = f"{size(needed)} to {size(most)} at most, by stage" if needed < most else f"{size(needed)} at most"
    value = f"{value}; the run takes {by_stage}" if needed else value
    return Finding("disk", value, numbers={"free": free, "needed": needed})


def open_files() -> Finding:
    """The number of files and connections that this process may have open, once it has raised its own limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return Finding("open files", "no limit")
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= allowed < FILES_NEEDED:
        advice = f"as root {FILES_NEEDED} in /etc/security/limits.conf"
        return Finding("open files", f"{allowed} at once; a large run takes {FILES_NEEDED}", "warning", advice)
    return Finding("open files", "no limit" if allowed < 0 else f"{allowed} at once")


def begins_slowly(setting: Path = SLOW_START) -> bool | None:
    """Whether this system's TCP begins slowly again after each pause; None: it is not Linux."""
    try:
        return setting.read_text().strip() != "0"
    except OSError:
        return None


def clock_finding(now: float) -> Finding:
    """Seconds since 1970: whether anybody has ever set it. By a node's clock it is compared with a ticket."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < EARLIEST:
        return Finding("clock", f"{shown}: it was never set", "failure", SET_THE_CLOCK)
    return Finding("clock", shown)


def over(rounds: int) -> Finding:
    """The finding about a run whose last round is finished: nobody can help it any more."""
    advice = "Its model is to be had with `hetpeer export TICKET --out model`; for another run, ask for its ticket"
    return Finding("run", f"it is over: its {rounds:,} rounds are finished", "warning", advice)
