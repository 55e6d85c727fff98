"""The page in a real browser: what people with a keyboard, a screen reader, a telephone or no JavaScript have of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from sidecar.fleet.queries import Unavailable
from sidecar.protocol.outputs import HaltAck
from tests.conftest import missing
from tests.fleet.browser import CHROMIUM, launch
from tests.fleet.memory import MemoryFleet
from tests.fleet.pictures import session_path, worst
from tests.fleet.serving import Site, serving
from tests.fleet.states import HOSTILE, LONG
from tests.fleet.support import state

ATTENTION = "Sessions that need attention"


class Taken:
    """Take acknowledgements in, as the fleet would hear of them."""

    def __init__(self) -> None:
        self.acks: list[tuple[str, HaltAck]] = []
        self.trouble: Exception | None = None

    async def __call__(self, session_id: str, ack: HaltAck) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.acks.append((session_id, ack))


TAKEN = Taken()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving(acknowledge=TAKEN) as given:
        yield given


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM:
        missing("the fleet's page was tried in no browser: there is no Chromium (Debian: apt-get install chromium)")
    with sync_playwright() as playwright, launch(playwright) as given:
        yield given


class Opened:
    """A page of its own, that must not complain, and must not ask anybody else for anything."""

    def __init__(self, browser: Browser, site: Site, **options: Any) -> None:
        self.context: BrowserContext = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self.page: Page = self.context.new_page()
        self.site = site
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", lambda m: self._complain(m.type, m.text))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("dialog", lambda d: (self.complaints.append(f"dialog: {d.message}"), d.dismiss()))
        self.page.on("request", lambda r: None if r.url.startswith(site.url) else self.foreign.append(r.url))

    def _complain(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def see(self, fleet: MemoryFleet, path: str = "/board") -> Page:
        self.site.fleet = fleet
        self.page.goto(self.site.url + path)
        return self.page


@pytest.fixture
def opened(browser: Browser, site: Site, request: pytest.FixtureRequest) -> Iterator[Opened]:
    given = Opened(browser, site, **getattr(request, "param", {}))
    yield given
    given.context.close()
    assert given.complaints == []
    assert given.foreign == []


def fresh(name: str = "storm") -> MemoryFleet:
    """Return a fleet whose answers may be changed, with the sessions of a state."""
    return state(name).copy()


WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 320, "height": 640}


def paths() -> dict[str, tuple[str, str]]:
    storm = state("storm")
    return {
        "empty": ("empty", "/board"),
        "healthy": ("healthy", "/board"),
        "storm": ("storm", "/board"),
        "filtered": ("storm", "/board?status=lossy&tenant=acme&model=&search=x"),
        "incomplete": ("incomplete", "/board?status=lossy"),
        "session": ("storm", session_path(worst(storm, "edge_dropped"))),
        "well": ("healthy", session_path(state("healthy").session_ids()[0])),
        "long": ("long", session_path(LONG)),
        "hostile": ("hostile", "/board?status=all"),
        "hostile-session": ("hostile", session_path(HOSTILE[0])),
        "nobody": ("empty", "/board/session?id=nobody"),
    }


@pytest.mark.parametrize("opened", [{"color_scheme": "light", "viewport": WIDE}], ids=["wide"], indirect=True)
@pytest.mark.parametrize("name", [*paths()])
def test_every_state_is_accessible(opened: Opened, name: str) -> None:
    fleet, path = paths()[name]
    page = opened.see(state(fleet), path)
    opened.complaints[:] = [c for c in opened.complaints if "404" not in c]  # (`nobody` is not found)
    # Of the long session only the drawing: its tables are those of the others, with more rows.
    results = Axe().run(page, "#log" if name == "long" else None, options={"resultTypes": ["violations"]})
    assert results.violations_count == 0, results.generate_report()
    twice = (
        "(ids => ids.filter((id, i) => ids.indexOf(id) !== i))([...document.querySelectorAll('[id]')].map(e => e.id))"
    )
    assert page.evaluate(twice) == []


@pytest.mark.parametrize("opened", [{"color_scheme": "dark", "viewport": NARROW}], ids=["narrow"], indirect=True)
def test_it_is_legible_in_the_dark_and_on_a_telephone(opened: Opened) -> None:
    for name, (fleet, path) in paths().items():
        page = opened.see(state(fleet), path)
        opened.complaints[:] = [c for c in opened.complaints if "404" not in c]
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"], f"{name} does not fit"
        if name in ("healthy", "filtered", "session"):
            results = Axe().run(page, options={"resultTypes": ["violations"]})
            assert results.violations_count == 0, f"{name}: {results.generate_report()}"
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")


def test_the_board_says_what_is_wrong_first(opened: Opened) -> None:
    page = opened.see(state("storm"))
    summary = page.locator(".verdict").inner_text()
    assert re.fullmatch(r"\d+ of 240 sessions degraded, \d+ alerts open, \d+ halts in nobody's hands\.", summary)
    assert page.title().startswith(summary)
    headings = page.get_by_role("heading", level=2).all_inner_texts()
    assert [h.rpartition(" ")[0] or h for h in headings[:3]] == ["Open alerts", "Sessions by", ATTENTION]
    first = page.get_by_role("article").first
    expect(first).to_contain_text("corrupt")
    expect(first).to_contain_text("Go on")
    expect(first.locator("code.rule").first).to_be_visible()
    worst_first = page.locator(".card .badge").all_inner_texts()
    ranks = ["corrupt", "lossy", "degraded", "unverified"]
    assert worst_first == sorted(worst_first, key=ranks.index)


def test_it_is_walked_with_the_keyboard_alone(opened: Opened) -> None:
    page = opened.see(state("storm"))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    expect(page.locator(".skip")).to_be_in_viewport()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    wanted = page.evaluate(
        """[...document.querySelectorAll('main a[href], main button, main select, main input, main [tabindex="0"]')]
           .filter(e => e.checkVisibility()).length"""
    )
    seen = []
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        seen.append(
            page.evaluate(
                """(() => { const e = document.activeElement, s = getComputedStyle(e), r = e.getBoundingClientRect();
                   return [e.closest('main') !== null, s.outlineStyle, parseFloat(s.outlineWidth),
                           r.bottom > 0 && r.top < innerHeight]; })()"""
            )
        )
    inside = [s for s in seen if s[0]]
    assert len(inside) == wanted, "everything is reached, and nothing holds the focus"
    assert all(style == "solid" and width >= 2 and visible for _, style, width, visible in inside)


def test_a_session_is_read_with_the_keyboard_alone(opened: Opened) -> None:
    page = opened.see(state("storm"), session_path(worst(state("storm"), "edge_dropped")))
    page.locator("#scroll-log").focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    finding = page.locator(".findings summary").first
    finding.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".findings details").first).to_have_attribute("open", "")
    expect(page.locator(".findings details").first.locator("p").first).to_be_visible()


def test_the_drawing_and_its_table_say_the_same(opened: Opened) -> None:
    page = opened.see(state("storm"), session_path(worst(state("storm"), "edge_dropped")))
    image = page.get_by_role("img", name="Timeline of the session by log position")
    expect(image).to_be_visible()
    drawn = [t.split(" ", 1)[0] for t in page.locator(".wide .label").all_text_contents() if re.match(r"[WAVPS]\d", t)]
    listed = page.locator("#scroll-rows th.key").all_inner_texts()
    assert drawn and set(drawn) <= set(listed)
    verdicts = dict(zip(listed, page.locator("#scroll-rows td .tone").all_inner_texts(), strict=True))
    for key in drawn:
        row = page.locator(".wide .row", has=page.locator(f".label:text-matches('^{key} ')"))
        assert row.locator(".said").text_content() == verdicts[key]
    # Told apart without any colour: by form, and by word.
    assert page.locator(".wide use[href='#p-absent']").count() >= 1
    assert "dropped" in verdicts.values()


def test_it_keeps_itself_up_to_date(opened: Opened) -> None:
    opened.page.clock.install()
    fleet = fresh()
    page = opened.see(fleet)
    before = page.locator(".verdict").inner_text()
    link = page.locator(".card h3 a").nth(2)
    link.focus()
    target = link.get_attribute("href")
    fleet.become(state("healthy"))
    _refreshed(page)
    expect(page.locator(".verdict")).to_have_text("All well: none of 40 sessions is degraded.")
    # What had the focus is gone, so that it is on the content, and not nowhere.
    assert page.evaluate("document.activeElement.id") == "main"
    expect(page.locator("#announce")).to_have_text("All well: none of 40 sessions is degraded.")
    fleet.become(state("storm"))
    _refreshed(page)
    expect(page.locator(".verdict")).to_have_text(before)
    again = page.locator(f".card h3 a[href='{target}']")
    again.focus()
    fleet.acknowledge(*_open_halt(fleet))
    _refreshed(page)
    expect(page.locator(".verdict")).not_to_have_text(before)
    assert page.evaluate("document.activeElement.getAttribute('href')") == target


def _open_halt(fleet: MemoryFleet) -> tuple[str, HaltAck]:
    row = next(r for s in fleet.shards for r in s.shelf.rows() if any(True for _ in r.unacknowledged()))
    halt_id, _ = next(row.unacknowledged())
    return row.session_id, HaltAck(halt_id=halt_id, by="bob", decision="looking")


def _refreshed(page: Page) -> None:
    with page.expect_response(lambda r: "part=live" in r.url):
        page.clock.run_for(5100)
    page.evaluate("new Promise(requestAnimationFrame)")


def test_what_is_opened_stays_open_and_what_is_written_stays_written(opened: Opened) -> None:
    opened.page.clock.install()
    fleet = fresh()
    rows = [r for s in fleet.shards for r in s.shelf.rows()]
    row = next(r for r in rows if len([*r.unacknowledged()]) >= 2)
    (newest, _), *_, (oldest, _) = reversed([*row.unacknowledged()])
    page = opened.see(fleet, session_path(row.session_id))
    finding = page.locator(".findings details").first
    finding.locator("summary").click()
    box = page.locator("article.halt", has_text=newest)
    box.locator("summary").click()
    fleet.acknowledge(row.session_id, HaltAck(halt_id=oldest, by="bob", decision="looking"))
    _refreshed(page)
    expect(page.locator("article.halt", has_text=oldest)).to_contain_text("bob has it in hand")
    expect(finding).to_have_attribute("open", "")
    expect(box.get_by_label("Who")).to_be_visible()
    box.get_by_label("Who").fill("ad")
    fleet.acknowledge(row.session_id, HaltAck(halt_id=oldest, by="eve", decision="me too"))
    _refreshed(page)
    expect(box.get_by_label("Who")).to_have_value("ad")
    expect(box.get_by_label("Who")).to_be_focused()
    box.get_by_label("Who").fill("")
    page.get_by_role("button", name="Pause updates").focus()
    _refreshed(page)
    expect(page.locator("article.halt", has_text=oldest)).to_contain_text("eve has it in hand")


def test_it_says_when_it_is_not_up_to_date(opened: Opened) -> None:
    opened.page.clock.install()
    fleet = fresh("healthy")
    page = opened.see(fleet)
    expect(page.locator("#trouble")).to_be_hidden()
    tried = []
    opened.page.route("**/board?part=live", lambda route: (tried.append(1), route.abort()))
    page.clock.run_for(5100)
    expect(page.locator("#trouble")).to_contain_text("Not up to date")
    expect(page.locator("#announce")).to_contain_text("not up to date")
    page.clock.fast_forward(30_000)
    expect(page.locator("body")).to_have_class("is-stale")
    for _ in range(24):
        page.clock.fast_forward(5000)
        page.wait_for_timeout(20)
    assert 2 <= len(tried) <= 7, "it asks ever less often"
    opened.page.unroute("**/board?part=live")
    page.clock.fast_forward(61_000)
    expect(page.locator("#trouble")).to_be_hidden()
    expect(page.locator("body")).not_to_have_class("is-stale")
    expect(page.locator("#announce")).to_contain_text("up to date again")
    opened.complaints[:] = [c for c in opened.complaints if "ERR_FAILED" not in c]


def test_it_says_which_worker_is_gone_and_keeps_what_it_has(opened: Opened) -> None:
    opened.page.clock.install()
    fleet = fresh()
    page = opened.see(fleet, session_path(worst(fleet, "edge_dropped")))
    fleet.down = Unavailable("it is being recovered", "http://127.0.0.1:9466")
    _refreshed(page)
    expect(page.locator("#trouble")).to_contain_text("Not up to date")
    expect(page.locator(".drawing.wide")).to_be_visible()
    opened.complaints[:] = [c for c in opened.complaints if "503" not in c]


def test_it_rests_while_nobody_looks_and_while_it_is_paused(opened: Opened, site: Site) -> None:
    opened.page.clock.install()
    page = opened.see(fresh("healthy"))

    def asked(seconds: int) -> int:
        page.wait_for_timeout(150)  # what is under way is not counted
        before = len(site.requests)
        page.clock.run_for(seconds * 1000)
        page.wait_for_timeout(150)
        return len(site.requests) - before

    assert asked(11) >= 1
    page.get_by_role("button", name="Pause updates").click()
    expect(page.get_by_role("button", name="Pause updates")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#fresh")).to_contain_text("Paused")
    assert asked(60) == 0
    page.get_by_role("button", name="Pause updates").click()
    assert asked(11) >= 1
    hide = "Object.defineProperty(document, 'hidden', {get: () => %s, configurable: true});"
    page.evaluate(hide % "true" + "document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(100)
    assert asked(60) == 0
    page.evaluate(hide % "false" + "document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(200)
    assert asked(6) >= 1


@pytest.mark.parametrize("opened", [{"java_script_enabled": False}], indirect=True)
def test_without_javascript_everything_is_there(opened: Opened) -> None:
    page = opened.see(state("storm"))
    expect(page.get_by_text("without JavaScript this page stays as it is")).to_be_visible()
    expect(page.locator("#pause")).to_be_hidden()
    page.get_by_label("Status", exact=True).select_option("lossy")
    page.get_by_label("Tenant").select_option("globex")
    page.get_by_role("button", name="Show").click()
    assert "status=lossy" in page.url and "tenant=globex" in page.url
    badges = page.locator(".card .badge").all_inner_texts()
    assert badges and set(badges) == {"lossy"}
    page.goto(opened.site.url + "/board")
    first = page.locator(".card h3 a").first.get_attribute("href")
    page.get_by_role("link", name="Next 25").click()
    assert page.locator(".card").count() == 25
    assert page.locator(".card h3 a").first.get_attribute("href") != first
    links = [link.get_attribute("href") for link in page.locator(".card h3 a").all()]
    for link in links:  # to one whose halts nobody has acknowledged
        page.goto(opened.site.url + str(link))
        expect(page.get_by_role("img", name="Timeline")).to_be_visible()
        if page.locator(".command").count():
            break
    expect(page.locator("form.ack").first).to_be_hidden()
    expect(page.locator(".command").first).to_contain_text("sidecar halts ack")


def test_hostile_ids_are_shown_and_do_nothing(opened: Opened) -> None:
    page = opened.see(state("hostile"), "/board?status=all")
    texts = page.locator(".card h3").all_inner_texts()
    assert '<script>alert("x")</script>' in texts
    assert any(t.startswith("\\u202emoc.live") for t in texts)
    assert any("the id is too long for a page of its own" in t for t in texts)
    assert page.locator("main script, main img").count() == 0
    for session_id in HOSTILE:
        if len(session_id) > 5000:
            continue
        page.goto(opened.site.url + session_path(session_id))
        assert page.locator(".wide .row").count() > 5
        assert page.locator("main script, main img").count() == 0
        assert page.locator("main [onerror], main [onload]").count() == 0


def test_a_halt_is_taken_in_hand_on_the_page(opened: Opened) -> None:
    fleet = fresh()
    session_id, ack = _open_halt(fleet)
    page = opened.see(fleet, session_path(session_id))
    box = page.locator("article.halt", has_text=ack.halt_id)
    if box.locator("details").get_attribute("open") is None:
        box.locator("summary").click()
    expect(box.locator(".command")).to_contain_text(f"sidecar halts ack {ack.halt_id}")
    box.get_by_label("Who").fill("ada")
    box.get_by_label("What is going to be done").fill('replaying <from> "12"')
    TAKEN.trouble = RuntimeError("the broker is away")
    box.get_by_role("button", name="Take in hand").click()
    expect(box.locator(".said")).to_have_text("Not taken in hand: It could not be published: the broker is away")
    TAKEN.trouble = None
    box.get_by_role("button", name="Take in hand").click()
    expect(box.locator(".said")).to_have_text("Taken in hand.")
    opened.complaints[:] = [c for c in opened.complaints if "503" not in c]
    taken = HaltAck(halt_id=ack.halt_id, by="ada", decision='replaying <from> "12"')
    assert TAKEN.acks == [(session_id, taken)]
    fleet.acknowledge(session_id, taken)
    page.reload()
    expect(page.locator("article.halt", has_text=ack.halt_id)).to_contain_text("ada has it in hand")


def test_a_part_of_the_log_can_be_looked_at(opened: Opened) -> None:
    page = opened.see(state("long"), session_path(LONG))
    page.get_by_role("link", name="Draw true to distance").click()
    assert "scale=true" in page.url
    page.get_by_role("link", name="Show the last 1,000 positions").click()
    expect(page.locator("#log .tools")).to_contain_text(re.compile(r"Positions 99,\d+ to 100,\d+"))
    expect(page.locator("#log .tools")).to_contain_text("outside of what is shown")
    page.get_by_role("link", name="Show the whole log").click()
    expect(page.locator("#log .tools")).to_contain_text("Positions 1 to 100,")
