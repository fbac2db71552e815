"""The dashboard in a real Chromium: how high its page is, and how long an update takes.

A made-up run moves once a second. **Height** is that of the page before anything is unfolded, in pixels and in screens.
**Update** is the time from a change's arrival until the page is laid out anew: median and longest. **Node** is the time
that the node's event loop takes to make a change, whoever reads it, and **bytes** the size of one change.

    python benchmarks/dashboard.py                      # 5, 50 and 500 peers
    python benchmarks/dashboard.py --peers 2000 --slower 4
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.options.small import sized_arguments
from bootstrap.dashboard.app import Latest
from bootstrap.dashboard.demo import demo_view
from tests.reference.browser import CHROMIUM, LACKING, chromium, opened
from tests.reference.dashboard import dashboard_of

WINDOWS = {"phone": (390, 844), "wide": (1440, 900)}
MEASURED = """
window.updates = [];
const listen = EventSource.prototype.addEventListener;
EventSource.prototype.addEventListener = function (kind, take) {
  listen.call(this, kind, kind !== "change" ? take : (event) => {
    const begun = performance.now();
    take(event);
    document.body.offsetHeight;
    window.updates.push([performance.now() - begun, event.data.length]);
  });
};
"""
"""The page's own listener, with a clock around it."""


def node_milliseconds(peers: int) -> float:
    """The time in which the node makes one change of a run of so many peers."""
    views = [demo_view(peers, 1e9 + second, 1e9) for second in range(12)]
    second, took = 0, []
    latest = Latest(lambda: views[second], lambda: float(second))
    for second in range(len(views)):  # noqa: B007  # the two above read it
        begun = time.perf_counter()
        latest.event_after(latest.read().number - 1)
        took.append(time.perf_counter() - begun)
    return 1000 * statistics.median(took[1:])


def main() -> None:
    """Measure, and print a row for each run and window."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[5, 50, 500])
    parser.add_argument("--seconds", type=int, default=50, help="of each row: a round has 45")
    parser.add_argument("--slower", type=int, default=1, help="how many times slower the browser's CPU is made")
    parser.add_argument("--json", action="store_true", help="all rows as one object, at the end")
    given = sized_arguments(parser, peers=[5], seconds=3)
    if CHROMIUM is None:
        sys.exit(LACKING)
    rows = []
    with chromium() as browser:
        for peers in given.peers:
            for window, (width, height) in WINDOWS.items():
                began = time.time()
                with dashboard_of(demo_view(peers, began, began)) as (shown, url):
                    page = opened(browser, url, width, script=MEASURED)
                    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": given.slower})
                    page.wait_for_selector("#loss polyline", state="attached")
                    pixels = page.evaluate("document.documentElement.scrollHeight")
                    for _ in range(given.seconds):
                        page.wait_for_timeout(1000)
                        shown.change(demo_view(peers, time.time(), began))
                    took, sizes = zip(*page.evaluate("window.updates"), strict=True)
                    page.context.close()
                row = {
                    "peers": peers,
                    "window": window,
                    "height": pixels,
                    "screens": round(pixels / height, 1),
                    "update_ms": round(statistics.median(took), 1),
                    "longest_ms": round(max(took), 1),
                    "node_ms": round(node_milliseconds(peers), 1),
                    "bytes": int(statistics.median(sizes)),
                }
                rows.append(row)
                if not given.json:
                    print(*(f"{name} {value}" for name, value in row.items()), sep="  ", flush=True)
    if given.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
