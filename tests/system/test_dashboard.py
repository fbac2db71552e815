"""The dashboard in a real Chromium: of a swarm of real processes, and of views that a test makes up."""

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from protocol.events.activity import Joined, Serving, StepDone
from protocol.events.event import PeerState
from tests.reference.browser import CHROMIUM, LACKING, chromium, opened
from tests.reference.dashboard import dashboard_of
from tests.reference.processes import TEXT, Peer
from tests.reference.views import LEADERS, LOST, ROUNDS, view

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=LACKING)

RUN = """
[model]
preset = "nano"
layers = 2
[replicas]
groups = 1
datacenters = 1
[inner]
steps = 8
sequences = 4
microbatch = 2
[outer]
rounds = 200
"""
SOON = 60_000  # milliseconds: a machine that is busy
LOST_COLOUR = "rgb(179, 38, 30)"


def card(page: Page, peer: str) -> Locator:
    return page.locator(f'.peer[data-peer="{peer}"]')


def test_a_browser_sees_rounds_advance_and_a_killed_peer_turn_red(tmp_path: Path):
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "text.txt").write_text(TEXT)
    where = ["--listen", "127.0.0.1:0", "--dir", str(tmp_path / "b"), "--data", str(tmp_path / "text.txt")]
    with ExitStack() as stack:
        enter = stack.enter_context
        node = enter(Peer("bootstrap", str(tmp_path / "run.toml"), *where, "--dashboard", "0"))
        serving = node.wait_for(Serving)
        browser = enter(chromium())

        def start(*command: str, name: str) -> Peer:
            folder = ["--dir", str(tmp_path / name), "--device", "cpu", "--threads", "1"]
            return enter(Peer(command[0], serving.ticket, *command[1:], *folder))

        names = ("leader", "member", "replica")
        peers = [
            start(*command, name=name)
            for name, command in zip(
                names, (("join", "--stage", "0"), ("join", "--stage", "1"), ("replica",)), strict=True
            )
        ]
        ids = [each.wait_for(Joined).peer_id for each in peers]
        page = opened(browser, serving.dashboard)
        everything = page.context.request.get(f"{serving.dashboard}view.json").text()
        assert serving.run_id in everything
        assert serving.ticket not in everything
        for each in ids:
            expect(page.locator(f'.peer[data-peer="{each}"] .state')).to_have_text("training", timeout=SOON)
        peers[1].wait_for(StepDone)
        shown = page.locator(".figures dd strong").first
        seen = [shown.inner_text()]
        for _ in range(2):
            expect(shown).not_to_have_text(seen[-1], timeout=SOON)
            seen.append(shown.inner_text())
        assert seen == sorted(seen, key=int)
        peers[1].end(signal.SIGKILL)
        killed = page.locator(f'[data-peer="{ids[1]}"] .state, tr[data-key="{ids[1]}"] .state').first
        expect(killed).to_have_text("lost", timeout=SOON)
        expect(killed).to_have_css("color", LOST_COLOUR)
        alive = page.locator(f'.peer[data-peer="{ids[2]}"] .state')
        expect(alive).to_have_text("training", timeout=SOON)  # the datacenter goes on
        node.leave()
        expect(page.locator("#connection")).to_contain_text("Connection lost", timeout=SOON)


@pytest.fixture(scope="module")
def browser():
    with chromium() as each:
        yield each


def test_a_lost_member_turns_red_in_place_and_is_told_to_who_listens(browser: Browser):
    with dashboard_of(view()) as (shown, url):
        page = opened(browser, url)
        page.evaluate('peer => { window.kept = document.querySelector(`[data-peer="${peer}"]`) }', LOST)
        expect(card(page, LOST)).not_to_have_css("border-left-color", LOST_COLOUR)
        shown.change(view(lost=True))
        expect(page.locator("#news")).to_have_text(f"Peer {LOST[-8:]} is lost.")
        expect(page.locator(f'[data-peer="{LOST}"] .state')).to_have_text("lost")
        expect(card(page, LOST)).to_have_css("border-left-color", LOST_COLOUR)
        expect(card(page, LEADERS[0])).not_to_have_css("border-left-color", LOST_COLOUR)
        assert page.evaluate("window.kept.isConnected")  # where a screen reader reads has not gone
        shown.change(view(14))
        expect(page.locator("#news")).to_have_text(f"Peer {LOST[-8:]} is back. Round 14 of {ROUNDS}.")
        assert page.title().startswith(f"Round 14 of {ROUNDS}")
        page.context.close()


def test_what_peers_say_is_text_and_nothing_of_it_is_run(browser: Browser):
    hostile = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
    with dashboard_of(view(lost=True, why=hostile)) as (_, url):
        page = opened(browser, url)
        assert page.locator(f'[data-peer="{LOST}"] .why').inner_text() == hostile
        assert page.evaluate("[window.hacked, document.images.length]") == [None, 0]
        page.context.close()


def test_a_lost_connection_is_seen_and_the_page_finds_back(browser: Browser):
    with dashboard_of(view()) as (_, url):
        page = opened(browser, url)
    expect(page.locator("#connection")).to_contain_text("Connection lost. What you see is from")
    with dashboard_of(view(15), where=url.split(":")[-1].strip("/")):
        expect(page.locator("#connection")).to_have_text("Live", timeout=SOON)
        assert page.title().startswith("Round 15")
    page.context.close()


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_width_needs_scrolling_to_the_side(browser: Browser, width: int):
    with dashboard_of(view(lost=True)) as (_, url):
        page = opened(browser, url, width)
        page.wait_for_selector("#bytes .main-svg", state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.context.close()


def test_who_cannot_see_it_has_landmarks_headings_tables_and_words_for_each_chart(browser: Browser):
    with dashboard_of(view(lost=True)) as (_, url):
        page = opened(browser, url, 360)  # also where tables are laid out as cards
        for role in ("banner", "main", "contentinfo"):
            expect(page.get_by_role(role)).to_have_count(1)  # type: ignore[arg-type]
        grid = page.get_by_role("table", name="Groups of volunteers by stage")
        expect(grid.get_by_role("rowheader")).to_have_count(3)
        expect(grid.get_by_role("cell")).to_have_count(12)
        for name in ("Held-out loss", "Tokens", "Bytes a round"):
            chart = page.get_by_role("img", name=name)
            expect(chart).to_have_count(1)
            page.get_by_text(f"{name} as a table").press("Enter")  # by the keyboard alone
            expect(page.get_by_role("table", name=name, exact=True)).to_be_visible()
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        page.context.close()


CONTRAST = """() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).map((each) => each / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (!colour.endsWith(", 0)")) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("body *:not(svg *)")]
    .filter((each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) && each.checkVisibility())
    .map((each) => [light(getComputedStyle(each).color), light(behind(each)), each.outerHTML.slice(0, 90)])
    .map(([one, other, what]) => [(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), what])
    .filter(([contrast]) => contrast < 4.5);
}"""  # noqa: E501


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_stand_out_from_what_is_behind_them(browser: Browser, scheme):
    states = {LEADERS[0]: PeerState.PAUSED, LEADERS[2]: PeerState.ON_TRIAL}
    with dashboard_of(view(lost=True, states=states)) as (_, url):
        page = opened(browser, url, scheme=scheme)
        assert page.evaluate(CONTRAST) == []
        page.context.close()
