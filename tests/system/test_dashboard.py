"""The dashboard in a real Chromium: of a swarm of real processes, and of runs that are made up."""

import signal
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from bootstrap.dashboard.demo import DEMO_ROUNDS, DEMO_SECONDS, Trouble, demo_view
from bootstrap.dashboard.page_view import merge_patch, page_view
from protocol.events.activity import Joined, Serving, StepDone
from protocol.events.event import PeerState
from protocol.monitor import View
from tests.reference.browser import CHROMIUM, LACKING, chromium, opened
from tests.reference.dashboard import dashboard_of
from tests.reference.processes import TEXT, Peer

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
PHONE, PHONE_HEIGHT = 390, 844
BEGAN = 1_795_000_000.0


def run(peers: int = 5, trouble: Trouble = "none", seconds: float = 20.0) -> View:
    """A made-up run, so long after one has begun to look."""
    return demo_view(peers, BEGAN + seconds, BEGAN, trouble)


LOST = next(peer.id for peer in run(trouble="short").peers if peer.state is PeerState.LOST)


def cell(page: Page, peer: str) -> Locator:
    return page.locator(f'#map .cell[data-peer="{peer}"]')


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.dataset.key ?? document.activeElement.id")


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
            expect(cell(page, each)).to_have_attribute("data-is", "training", timeout=SOON)
        peers[1].wait_for(StepDone)
        shown = page.locator("#figures strong").nth(2)
        seen = [shown.inner_text()]
        for _ in range(2):
            expect(shown).not_to_have_text(seen[-1], timeout=SOON)
            seen.append(shown.inner_text())
        assert seen == sorted(seen, key=int)
        peers[1].end(signal.SIGKILL)
        expect(cell(page, ids[1])).to_have_attribute("data-is", "lost", timeout=SOON)
        expect(page.locator("#problems")).to_contain_text("is lost")
        expect(cell(page, ids[2])).to_have_attribute("data-is", "training", timeout=SOON)  # the datacenter goes on
        node.leave()
        expect(page.locator("#connection")).to_contain_text("Connection lost", timeout=SOON)


@pytest.fixture(scope="module")
def browser():
    with chromium() as each:
        yield each


def test_what_changes_is_seen_in_place_told_to_who_listens_and_judged_first(browser: Browser):
    with dashboard_of(run()) as (shown, url):
        page = opened(browser, url)
        expect(page.locator("#verdict")).to_contain_text("Healthy")
        expect(page.locator("#made-up")).to_contain_text("Made up")
        cell(page, LOST).focus()
        page.evaluate("window.kept = document.activeElement; scrollTo(0, 90)")
        shown.change(run(trouble="short"))
        expect(page.locator("#news")).to_have_text(f"Peer {LOST[-8:]} is lost. 1 of 2 groups does not train.")
        expect(page.locator("#verdict")).to_contain_text("1 of 2 groups does not train")
        expect(cell(page, LOST)).to_contain_text("lost")
        assert page.evaluate("[window.kept === document.activeElement, scrollY]") == [True, 90]
        shown.change(run(trouble="stalled", seconds=DEMO_SECONDS))
        expect(page.locator("#verdict")).to_contain_text("Stalled since")
        shown.change(run(seconds=DEMO_SECONDS))
        expect(page.locator("#news")).to_contain_text(f"Peer {LOST[-8:]} is back.")
        expect(page.locator("#news")).to_contain_text(f"Round 14 of {DEMO_ROUNDS}.")
        assert page.title().startswith(f"Healthy · round 14 of {DEMO_ROUNDS}")
        page.context.close()


def test_the_page_has_the_runs_state_after_many_changes(browser: Browser):
    trees = [page_view(run(50, trouble, seconds)) for trouble in ("none", "short") for seconds in (1, 2, 60, 3000)]
    with dashboard_of(run()) as (_, url):
        page = opened(browser, url)
        for before, after in pairwise(trees):
            merged = "([tree, patch]) => import('/stream.js').then(({ merged }) => merged(tree, patch))"
            assert page.evaluate(merged, [before, merge_patch(before, after)]) == after
        page.context.close()


def test_what_peers_say_is_text_and_nothing_of_it_is_run(browser: Browser):
    hostile = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
    seen = run(trouble="short")
    peers = [replace(peer, why=hostile, address=hostile, version=hostile) for peer in seen.peers]
    groups = [group.model_copy(update={"broken": hostile, "slow": hostile}) for group in seen.groups]
    log = [line.model_copy(update={"words": hostile, "kind": hostile}) for line in seen.log]
    history = [entry.model_copy(update={"late": {LOST: hostile}, "left": {LOST: hostile}}) for entry in seen.history]
    words = {"short": hostile, "state_why": hostile}
    everything = {"peers": peers, "groups": groups, "log": log, "history": history}
    with dashboard_of(seen.model_copy(update=everything | words)) as (_, url):
        page = opened(browser, url)
        cell(page, LOST).click()
        assert page.locator("#details-body").inner_text().count(hostile) == 5
        page.keyboard.press("Escape")
        page.locator("#rounds [data-round]").first.click()
        assert page.locator("#details-body").inner_text().count(hostile) == 2
        page.keyboard.press("Escape")
        for part in ("#verdict", "#problems", "#log"):
            expect(page.locator(part)).to_contain_text(hostile)
        assert page.evaluate("[window.hacked, document.images.length]") == [None, 0]
        page.context.close()


def test_a_lost_connection_is_seen_and_the_page_finds_back(browser: Browser):
    with dashboard_of(run()) as (_, url):
        page = opened(browser, url)
    expect(page.locator("#connection")).to_contain_text("Connection lost. What you see is from")
    with dashboard_of(run(seconds=DEMO_SECONDS), where=url.split(":")[-1].strip("/")):
        expect(page.locator("#connection")).to_have_text("Live", timeout=SOON)
        expect(page.locator("#figures")).to_contain_text("14")
    page.context.close()


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_width_needs_scrolling_to_the_side(browser: Browser, width: int):
    for peers in (5, 500):
        with dashboard_of(run(peers, "short")) as (_, url):
            page = opened(browser, url, width)
            page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true })")
            page.wait_for_selector("#bytes polyline", state="attached")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            page.context.close()


@pytest.mark.parametrize("trouble", ["none", "short", "stalled"])
def test_five_hundred_peers_take_three_screens_of_a_phone_before_one_asks_for_more(browser: Browser, trouble: Trouble):
    with dashboard_of(run(500, trouble, 44.0)) as (_, url):
        page = opened(browser, url, PHONE)
        page.wait_for_selector("#loss polyline", state="attached")
        assert page.locator("#map .cell").count() == 500
        assert page.evaluate("document.documentElement.scrollHeight") <= 3 * PHONE_HEIGHT
        page.get_by_text("All peers as a table").click()
        expect(page.locator("#table tbody tr")).to_have_count(20)
        page.get_by_role("button", name="Show 100 more").click()
        expect(page.locator("#table tbody tr")).to_have_count(120)
        page.context.close()


def test_the_keyboard_alone_reaches_a_peer_and_comes_back(browser: Browser):
    seen = run(50)
    first, second = seen.groups[0].members[0], seen.groups[1].members[0]
    with dashboard_of(seen) as (shown, url):
        page = opened(browser, url)
        cell(page, first).focus()
        page.keyboard.press("ArrowRight")
        assert focused(page) == second
        page.keyboard.press("ArrowDown")
        assert focused(page) == seen.groups[1].members[1]
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name=f"Peer {second[-8:]}")
        expect(dialog).to_contain_text("stage 0, group 2")
        shown.change(run(50, seconds=22.0))
        expect(dialog).to_contain_text(second)
        page.keyboard.press("Escape")
        expect(dialog).not_to_be_visible()
        assert focused(page) == second
        page.keyboard.press("Tab")  # a row is one stop: where one was last
        assert focused(page) == seen.groups[1].members[1]
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.context.close()


def test_focus_stays_with_a_peer_whose_row_moves(browser: Browser):
    seen = run()
    ranks = [[5, 4, 3, 2, 1], [1, 2, 3, 4, 5]]
    views = [
        seen.model_copy(update={"peers": [replace(peer, credit=r) for peer, r in zip(seen.peers, rank, strict=True)]})
        for rank in ranks
    ]
    with dashboard_of(views[0]) as (shown, url):
        page = opened(browser, url)
        link = page.locator("#table tbody button").first
        link.focus()
        peer = link.get_attribute("title")
        shown.change(views[1])
        expect(page.locator("#table tbody tr").last).to_have_attribute("data-key", str(peer))
        assert page.evaluate("document.activeElement.title") == peer
        page.context.close()


def test_peers_are_searched_filtered_and_sorted(browser: Browser):
    seen = run(50, "short")
    with dashboard_of(seen) as (_, url):
        page = opened(browser, url)
        page.get_by_role("searchbox").fill("nobody is called this")
        expect(page.locator("#matches")).to_have_text("0 of 50")
        page.get_by_role("searchbox").fill(seen.peers[7].id[-6:])
        expect(page.locator("#map .cell")).to_have_count(1)
        page.get_by_role("searchbox").fill("")
        page.get_by_role("button", name="Show them").click()
        expect(page.locator("#matches")).to_have_text("3 of 50")
        page.get_by_role("button", name="lost, 3 peers").click()
        page.get_by_label("Place").select_option("stage 1")
        expect(page.locator("#matches")).to_have_text("12 of 50")
        page.get_by_label("Place").select_option("")
        credit = page.locator("#table th", has_text="Credit")
        most = max(peer.credit for peer in seen.peers)
        assert credit.get_attribute("aria-sort") == "descending"
        row = page.locator("#table tbody tr").first
        assert row.get_attribute("data-key") == next(peer.id for peer in seen.peers if peer.credit == most)
        credit.get_by_role("button").press("Enter")
        expect(credit).to_have_attribute("aria-sort", "ascending")
        page.context.close()


def test_who_cannot_see_it_has_landmarks_headings_names_and_words_for_each_chart(browser: Browser):
    with dashboard_of(run(trouble="short")) as (_, url):
        page = opened(browser, url)
        for role in ("banner", "main", "contentinfo", "search"):
            expect(page.get_by_role(role)).to_have_count(1)  # type: ignore[arg-type]
        row = page.get_by_role("group", name="Stage 1: 2: 1 training, 1 lost")
        expect(row.get_by_role("button")).to_have_count(2)
        expect(row.get_by_role("button", name=f"{LOST[-8:]}, stage 1, group 2: lost, ")).to_have_count(1)
        for name in ("Held-out loss", "Tokens", "Bytes a round"):
            expect(page.get_by_role("img", name=name)).to_have_count(1)
        for name in ("Peers and their credit", "Rounds"):
            expect(page.get_by_role("table", name=name)).to_have_count(1)
        assert (
            page.evaluate(
                "[...document.querySelectorAll('button')].filter((one) => !one.textContent && !one.ariaLabel)"
            )
            == []
        )
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
    for seen in (run(50, "short"), run(5, "stalled")):
        states = [PeerState.PAUSED, PeerState.ON_TRIAL, PeerState.GONE, PeerState.FAILED]
        peers = [replace(peer, state=state) for peer, state in zip(seen.peers, states, strict=False)]
        shown = seen.model_copy(update={"peers": [*peers, *seen.peers[len(peers) :]]})
        with dashboard_of(shown) as (_, url):
            page = opened(browser, url, scheme=scheme)
            page.locator("#map .cell").first.click()
            assert page.evaluate(CONTRAST) == []
            page.context.close()
