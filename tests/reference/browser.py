"""A real headless Chromium, of the system's packages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
LACKING = "no Chromium to look at the dashboard with (Debian: apt-get install chromium): not tested in a browser"

QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-quic", "--disable-sync")
"""It asks nobody for anything but the page."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """One without a window."""
    unconfined = ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses its sandbox to root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*QUIET, *unconfined])
        try:
            yield browser
        finally:
            browser.close()


def opened(
    browser: Browser, url: str, width: int = 1280, scheme: Literal["light", "dark"] = "light", script: str = ""
) -> Page:
    """A page that has been loaded, in a window of this width, and that has seen a first view. `script` runs before
    its own."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, device_scale_factor=2 if width < 500 else 1
    )
    page = context.new_page()
    page.add_init_script(script)
    page.goto(url)
    page.wait_for_selector("#connection[data-is=live]", state="attached")
    return page
