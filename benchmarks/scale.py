"""What one round costs with 10, 100 and 1000 replicas of a stage, in virtual time.

All replicas contribute at the same moment; the round is over when everybody has everything. Whom a peer compares with,
whom it tells and from whom it fetches what are the daemon's own decisions (`peer/network/gossip_policy.py`), and so are
the sets it compares (`protocol/outer/ledger.py`): at all peers of a small swarm, at a few of a large one, where the
others keep bit sets that must say the same. Messages have the sizes of real ones, signed and serialised. Links, latency
and gRPC's headers are a model (`virtual/network.py`, `virtual/sizes.py`), and the DHT is computed, not played
(`virtual/directory.py`). Nobody fails here: for that there is `tests/simulation`.
"""

import argparse
import json
import re
import time
from dataclasses import asdict

from options.small import sized_arguments
from virtual.measure import Conditions, Measured, Spread, measure

from protocol.identity import stage_part
from protocol.manifest import check_manifest

REAL_LEDGERS = 100
"""So many peers have real ledgers in a swarm of that size; in a larger one, `SAMPLED` of them."""

SAMPLED = 8


def rate(text: str) -> float:
    """`20Mbit`, `1Gbit`: in bits a second."""
    found = re.fullmatch(r"([\d.]+)([kMG])bit", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate; write 20Mbit or 1Gbit")
    return float(found[1]) * {"k": 1e3, "M": 1e6, "G": 1e9}[found[2]]


def megabytes(spread: Spread) -> str:
    """Mean and largest."""
    return f"{spread.mean / 1e6:.2f} / {spread.max / 1e6:.2f}"


ROWS = {
    "seconds until all have all": lambda each: f"{each.seconds:.1f}",
    "seconds until all have 99 %": lambda each: f"{each.seconds_99:.1f}",
    "bound: M - 1 blobs on a downlink": lambda each: f"{each.bound_down:.1f}",
    "bound: M (M - 1) on all uplinks": lambda each: f"{each.bound_up:.1f}",
    "seconds / bound": lambda each: f"{each.seconds / each.bound:.2f}",
    "messages a peer sends": lambda each: f"{each.messages.mean:.0f} / {each.messages.max:.0f}",
    "control up, MB": lambda each: megabytes(each.control_up),
    "control down, MB": lambda each: megabytes(each.control_down),
    "blobs up, MB": lambda each: megabytes(each.blobs_up),
    "blobs down, MB": lambda each: megabytes(each.blobs_down),
    "control / blobs": lambda each: f"{each.control_down.mean / each.blobs_down.mean:.2%}",
    "DHT reads + writes": lambda each: f"{each.directory.reads:.0f} + {each.directory.writes:.0f}",
    "DHT calls": lambda each: f"{each.directory.calls:.0f}",
    "DHT MB": lambda each: f"{each.directory.bytes / 1e6:.2f}",
    "DHT: busiest holder up, Mbit/s": lambda each: f"{each.directory.busiest_up * 8e-6:.2f}",
    "peers with real ledgers": lambda each: str(each.real_ledgers),
    "comparisons checked by them": lambda each: str(each.real_comparisons),
}


def table(results: list[Measured]) -> str:
    """One column for each size of the swarm."""
    lines = [["replicas of the stage", *(str(each.replicas) for each in results)]]
    lines += [[name, *(row(each) for each in results)] for name, row in ROWS.items()]
    return "\n".join(f"{name:34}" + "".join(f"{value:>20}" for value in values) for name, *values in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--up", type=rate, default=rate("20Mbit"), help="of a volunteer")
    parser.add_argument("--down", type=rate, default=rate("100Mbit"))
    parser.add_argument("--datacenter", type=rate, default=rate("1Gbit"), help="both ways")
    parser.add_argument("--datacenters", type=float, default=0.1, help="share of the replicas")
    parser.add_argument("--latency", type=float, default=0.05, help="seconds, one way")
    parser.add_argument("--inner", type=float, default=600.0, help="seconds of an inner loop, for the DHT")
    parser.add_argument("--preset", default="178m")
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--values", default="2bit", choices=["2bit", "bf16"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = sized_arguments(parser, replicas=[10])
    tables = {
        "model": {"preset": options.preset},
        "replicas": {"stages": options.stages},
        "outer": {"values": options.values},
    }
    manifest, part = check_manifest(tables), stage_part(options.stage)
    conditions = Conditions(
        options.up, options.down, options.datacenter, options.datacenters, options.latency, options.inner
    )
    results = []
    for replicas in options.replicas:
        begun = time.monotonic()
        real = replicas if replicas <= REAL_LEDGERS else SAMPLED
        results.append(measure(manifest, part, replicas, conditions, real, options.seed))
        if not options.json:
            print(f"played {replicas} replicas in {time.monotonic() - begun:.0f} s", flush=True)
    if options.json:
        print(json.dumps([asdict(each) | {"ratio_bound": each.seconds / each.bound} for each in results]))
    else:
        print(f"one contribution of {part} of {options.preset} in {options.stages} stages: {results[0].blob} bytes")
        print("of one peer, mean / largest\n" + table(results))


if __name__ == "__main__":
    main()
