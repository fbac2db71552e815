"""Makes docs/dashboard-{light,dark,phone}.png: the dashboard in a real Chromium, with a peer down.

    python docs/screenshots.py

The swarm in the pictures is made up (`bootstrap/dashboard/demo.py`): one as large does not run on one machine.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from bootstrap.dashboard.demo import demo_view  # noqa: E402
from tests.reference.browser import CHROMIUM, LACKING, chromium, opened  # noqa: E402
from tests.reference.dashboard import dashboard_of  # noqa: E402

PICTURES = (("light", 1280, "light", 1150), ("dark", 1280, "dark", 1150), ("phone", 390, "light", 1500))
"""Name, width, colours, and how much of the page's height."""

PEERS, BEGAN = 120, 1_795_000_000.0


def main() -> None:
    """Take all of them."""
    if CHROMIUM is None:
        sys.exit(LACKING)
    with dashboard_of(demo_view(PEERS, BEGAN + 20, BEGAN, "short")) as (_, url), chromium() as browser:
        for name, width, scheme, height in PICTURES:
            page = opened(browser, url, width, scheme)
            page.wait_for_selector("#loss polyline", state="attached")
            page.screenshot(path=HERE / f"dashboard-{name}.png", full_page=True, animations="disabled",
                            clip={"x": 0, "y": 0, "width": width, "height": height})  # fmt: skip
            page.context.close()


if __name__ == "__main__":
    main()
