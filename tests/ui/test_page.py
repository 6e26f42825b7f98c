"""The page `/ui` in a browser: content, layout on several screens, API keys, and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.ui.browser import Page, Scheme
from tests.ui.conftest import Serve, Served
from tests.unit.telemetry.ended_requests import FAILED, FINISHED

from kvreg_service.api.app import create_app
from kvreg_service.core.labels import LaneState
from kvreg_service.engine.interface.snapshot import LaneView, PoolView, RegistrySnapshot, Totals
from kvreg_service.settings import load_settings
from kvreg_service.telemetry.ui.recent_requests import RecentRequests
from kvreg_service.testing.fake_engine import FakeEngine
from kvreg_service.testing.fake_prompt_builder import FakePromptBuilder
from kvreg_service.testing.http_server import running_server

KEYS = json.dumps({"tenants": {"alpha": {"keys": ["sk-a"]}, "beta": {"keys": ["sk-b"]}}})
HOSTILE = """<img src=x onerror="document.title='owned'"><b>bold</b>&lt;"""
SCREENS: list[tuple[int, int, Scheme]] = [
    (1200, 900, "light"),
    (1200, 900, "dark"),
    (390, 844, "light"),
    (390, 844, "dark"),
    (320, 640, "light"),
]


@pytest.fixture(scope="module")
def mixed(serve: Serve) -> Iterator[Served]:
    """A server after a mix of requests, shared by the tests that only read."""
    with serve() as server:
        server.mix()
        server.pin_one()
        yield server


# Content.


def test_page_shows_lanes_entries_and_anchors(mixed: Served, page: Page) -> None:
    registry = mixed.http.get(f"{mixed.url}/v1/registry").json()
    page.open(f"{mixed.url}/ui")
    page.wait_for_text("serving", "#status")
    for place, name in (("lanes", "lane"), ("entries", "entry"), ("anchors", "anchor")):
        held = [p for p in registry[place] if p["sequence_id"] is not None]
        shown = page.text(f"#{place}")
        assert held, f"the mix leaves nothing in any {name}"
        for p in held:
            assert f"#{p['sequence_id']}" in shown
            assert f"{p['tokens']:,}" in shown
    assert "pinned for" in page.text("#entries")


def test_page_shows_the_counters(mixed: Served, page: Page) -> None:
    totals = mixed.http.get(f"{mixed.url}/v1/registry").json()["totals"]
    counts = mixed.http.get(f"{mixed.url}/v1/registry/requests").json()["counts"]
    page.open(f"{mixed.url}/ui")
    page.wait_for_text("serving", "#status")
    assert counts["returned"] > 0
    tiles = page.text("#tiles")
    ratio = f"{100 * counts['returned'] / counts['requests']:.1f} %"
    assert ratio in tiles
    assert f"{counts['returned']} of {counts['requests']} requests" in tiles
    for path, number in totals["requests_by_path"].items():
        assert f"{path.replace('_', ' ')}\n{number}," in page.text("#paths")
    for reason, number in totals["evictions_by_reason"].items():
        shown = f"{reason.replace('_', ' ')}\n{number}"
        assert (shown in page.text("#evictions")) == (number > 0)


def test_page_shows_memory_as_bars(mixed: Served, page: Page) -> None:
    registry = mixed.http.get(f"{mixed.url}/v1/registry").json()
    (pool,) = registry["pools"]
    page.open(f"{mixed.url}/ui")
    page.wait_for_text("serving", "#status")
    assert f"{pool['referenced']:,} of {pool['total']:,}" in page.text("#memory")
    widths = page.evaluate(
        "[...document.querySelectorAll('#memory .fill')].map("
        "e => e.getBoundingClientRect().width / e.parentElement.getBoundingClientRect().width)"
    )
    slots = registry["state_slots"]
    assert widths == pytest.approx(
        [pool["referenced"] / pool["total"], slots["used"] / slots["total"]], abs=0.01
    )


def test_page_shows_the_last_requests_with_their_path(mixed: Served, page: Page) -> None:
    requests = mixed.http.get(f"{mixed.url}/v1/registry/requests").json()["requests"]
    page.open(f"{mixed.url}/ui")
    page.wait_for_text("serving", "#status")
    rows = page.evaluate(
        "[...document.querySelectorAll('#requests tbody tr')].map(e => e.innerText)"
    )
    assert len(rows) == len(requests)
    for row, request in zip(rows, requests, strict=True):
        assert request["request_id"] in row
        assert request["reuse_path"].replace("_", " ") in row
        assert f"{request['cached_tokens']} cached + {request['computed_tokens']} computed" in row


def test_page_updates_when_a_request_ends(serve: Serve, page: Page) -> None:
    with serve() as server:
        page.open(f"{server.url}/ui")
        page.wait_for_text("No request has ended yet.", "#requests")
        server.ask([{"role": "user", "content": "Hi"}])
        page.wait_for_text("full reset", "#requests")


# Layout.


@pytest.mark.parametrize(("width", "height", "scheme"), SCREENS)
def test_page_fits_the_screen_without_console_errors(
    mixed: Served, page: Page, tmp_path: Path, width: int, height: int, scheme: Scheme
) -> None:
    page.set_screen(width, height, scheme)
    page.open(f"{mixed.url}/ui")
    page.wait_for_text("serving", "#status")
    page.screenshot(tmp_path / "ui.png")
    assert page.overflow() == 0
    assert page.console_errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_sufficient_contrast(mixed: Served, page: Page, scheme: Scheme) -> None:
    page.set_screen(1200, 900, scheme)
    page.open(f"{mixed.url}/ui")
    page.wait_for_text("serving", "#status")
    # The contrast that WCAG level AA requires for text of this size.
    assert page.evaluate(LOW_CONTRAST) == []


LOW_CONTRAST = """(() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const part = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll("body *")]
    .filter((e) => e.checkVisibility())
    .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
    .map((e) => {
      const both = [light(parse(getComputedStyle(e).color)), light(ground(e))];
      const [a, b] = both.sort((x, y) => y - x);
      return [e.className, e.innerText, (a + 0.05) / (b + 0.05)];
    })
    .filter(([, , ratio]) => ratio < 4.5);
})()"""


# Escaping.


class HostileEngine(FakeEngine):
    """An engine whose text values are markup."""

    def snapshot(self, tenant: str | None = None) -> RegistrySnapshot:
        """Return a registry snapshot with markup in every text."""
        view = super().snapshot(tenant)
        return replace(
            view,
            profile=replace(
                view.profile, model=HOSTILE, profile=HOSTILE, device=HOSTILE, eviction=HOSTILE
            ),
            lanes=(
                LaneView(0, LaneState.DECODE, request_id=HOSTILE, sequence_id=1, tenant=HOSTILE),
            ),
            entries=tuple(replace(entry, tenant=HOSTILE) for entry in view.entries),
            pools=(PoolView(HOSTILE, total=8, free=6, referenced=2),),
            totals=Totals(requests_by_path={}),
        )


# The API sends known reasons only, so the page gets this one directly.
HOSTILE_COUNTS = {
    "pools": [],
    "state_slots": {"used": 0, "total": 0},
    "totals": {
        "requests_by_path": {},
        "never_started": 0,
        "evictions_by_reason": {HOSTILE: 1},
    },
}


@pytest.mark.parametrize("width", [1200, 390])
def test_markup_in_values_stays_text(page: Page, width: int) -> None:
    recent = RecentRequests()
    for record in (FINISHED, FAILED):
        recent.request_ended(replace(record, tenant=HOSTILE, request_id=HOSTILE))
    app = create_app(HostileEngine(), FakePromptBuilder(), load_settings(), recent=recent)
    page.set_screen(width, 844)
    with running_server(app) as url:
        page.open(f"{url}/ui")
        page.wait_for_text("serving", "#status")
        shown = page.text()
        elements = page.evaluate("document.querySelectorAll('img, #shown td b, h1 b, p b').length")
        title = page.evaluate("document.title")
        reason, reason_elements = page.evaluate(
            f"showCounts({json.dumps(HOSTILE_COUNTS)}),"
            "[document.getElementById('evictions').innerText,"
            " document.querySelectorAll('#evictions img, #evictions b').length]"
        )
        overflow = page.overflow()
        page.leave()
    # The model, twice in the profile, lane, request, tenant and requests.
    assert shown.count(HOSTILE) >= 8
    assert elements == 0
    assert HOSTILE in reason
    assert reason_elements == 0
    assert title == f"kvreg {HOSTILE}"
    assert overflow == 0
    assert page.console_errors == []


# API keys.


def test_page_requires_a_key_once_and_shows_a_tenant_only_its_own(serve: Serve, page: Page) -> None:
    with serve(api_keys=KEYS) as server:
        server.mix(key="sk-a", num_sessions=2, num_turns=1)
        server.ask([{"role": "user", "content": "Hi"}], key="sk-b")
        page.open(f"{server.url}/ui")
        page.wait_for_text("requires an API key")
        assert page.evaluate("document.getElementById('shown').checkVisibility()") is False

        enter_key(page, "sk-wrong")
        page.wait_for_text("rejected this key")

        enter_key(page, "sk-a")
        page.wait_for_text("serving", "#status")
        assert "alpha" in page.text("#requests")
        assert "beta" not in page.text()
        assert page.evaluate("document.getElementById('ask-key').checkVisibility()") is False

        page.open(f"{server.url}/ui")
        page.wait_for_text("serving", "#status")

        page.evaluate("document.getElementById('forget-key').click()")
        page.wait_for_text("requires an API key")
        # Not even hidden.
        assert "alpha" not in page.evaluate("document.documentElement.textContent")
        enter_key(page, "sk-b")
        page.wait_for_text("serving", "#status")
        assert "beta" in page.text("#requests")
        assert "alpha" not in page.text()


def test_key_is_kept_in_the_tab_only(serve: Serve, page: Page) -> None:
    with serve(api_keys=KEYS) as server:
        page.open(f"{server.url}/ui")
        page.wait_for_text("requires an API key")
        enter_key(page, "sk-a")
        page.wait_for_text("serving", "#status")
        kept = page.evaluate(
            "[JSON.stringify({...localStorage}), document.cookie, location.href,"
            " JSON.stringify({...sessionStorage}), document.documentElement.outerHTML]"
        )
    local, cookie, address, session, document = kept
    assert (local, cookie, address) == ("{}", "", f"{server.url}/ui")
    assert "sk-a" in session
    assert "sk-a" not in document


def test_key_that_is_invalid_in_a_header_is_rejected(serve: Serve, page: Page) -> None:
    with serve(api_keys=KEYS) as server:
        page.open(f"{server.url}/ui")
        page.wait_for_text("requires an API key")
        enter_key(page, "Schlüssel")
        page.wait_for_text("rejected this key")


def enter_key(page: Page, key: str) -> None:
    page.evaluate(
        f"document.getElementById('key').value = {json.dumps(key)},"
        "document.getElementById('ask-key').requestSubmit()"
    )


# Errors.


def test_page_shows_that_the_server_is_draining(serve: Serve, page: Page) -> None:
    with serve() as server:
        page.open(f"{server.url}/ui")
        page.wait_for_text("serving", "#status")
        server.http.post(f"{server.url}/admin/drain").raise_for_status()
        page.wait_for_text("draining", "#status")
        assert "accepts no new ones" in page.text("#notice")


def test_page_shows_that_the_server_is_unreachable_and_the_data_is_stale(
    serve: Serve, page: Page
) -> None:
    with serve(is_left_first=False) as server:
        server.ask([{"role": "user", "content": "Hi"}])
        page.open(f"{server.url}/ui")
        page.wait_for_text("full reset", "#requests")
    page.wait_for_text("unreachable", "#status")
    assert "The data shown is from" in page.text("#notice")
    assert "full reset" in page.text("#requests")
    assert page.evaluate("document.getElementById('shown').className") == "old"


def test_page_shows_why_an_engine_is_not_ready(page: Page) -> None:
    engine = FakeEngine(is_sound=False)
    with running_server(create_app(engine, FakePromptBuilder(), load_settings())) as url:
        page.open(f"{url}/ui")
        page.wait_for_text("not ready", "#status")
        assert "the engine is not ready" in page.text("#notice")
        engine.is_sound = True
        page.wait_for_text("serving", "#status")
        page.leave()
