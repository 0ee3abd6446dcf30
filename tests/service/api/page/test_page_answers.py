"""The answers on the page: all kept, filtered, downloaded, readable."""

import csv
import json
import re
from typing import TYPE_CHECKING, Literal

import pytest

from tests.support.service.browser import IN_A_BROWSER, SEVEN, expect, opened

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@IN_A_BROWSER
def test_all_of_many_answers_are_kept_and_errors_are_listed_apart(page: "Page") -> None:
    bad = [{"name": f"{n}.png", "mimeType": "image/png", "buffer": b"no"} for n in range(2)]
    good = [
        {"name": f"{n}.jpg", "mimeType": "image/jpeg", "buffer": SEVEN.read_bytes()}
        for n in range(60)
    ]
    page.get_by_label("Choose images").set_input_files([*bad, *good])  # type: ignore[arg-type]
    expect(page.locator("#count")).to_have_text("62")
    expect(page.locator(".answer")).to_have_count(62)
    expect(page.locator("#progress")).to_be_hidden()
    errors = page.locator("#errors li").all_inner_texts()
    assert sorted(error.partition(":")[0] for error in errors) == ["0.png", "1.png"]
    page.get_by_label("At least").fill("99.9")
    expect(page.locator(".answer:visible")).to_have_count(0)
    page.get_by_label("At least").fill("0")
    page.get_by_label("Label contains").fill("7")
    expect(page.locator(".answer:not([hidden])")).to_have_count(60)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert len(rows) == 60 * 5 + 2
    assert {row["label"] for row in rows if row["place"] == "1"} == {"7"}
    with page.expect_download() as download:
        page.get_by_role("button", name="Download JSON").click()
    answers = json.loads(download.value.path().read_text())
    assert [answer["name"] for answer in answers] == [each["name"] for each in (*bad, *good)]
    page.get_by_role("button", name="Remove all").click()
    expect(page.locator(".answer")).to_have_count(0)


@IN_A_BROWSER
def test_an_example_is_a_click_and_top_k_a_choice(page: "Page") -> None:
    expect(page.locator("#card")).to_contain_text("32 × 32 grey")
    page.get_by_label("Labels per image").select_option("3")
    page.get_by_role("button", name="Classify 4_").click()
    expect(page.locator(".answer h3")).to_have_text("4")
    expect(page.locator(".bars li")).to_have_count(3)
    expect(page.locator("#p99")).to_contain_text("ms")


@IN_A_BROWSER
@pytest.mark.parametrize("width", [390, 1000, 1920])
def test_no_text_is_cut_and_nothing_overflows(page: "Page", width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.get_by_label("Choose images").set_input_files(SEVEN)
    expect(page.locator(".answer .bars li")).to_have_count(5)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = """elements => elements.filter(each => each.scrollWidth > each.clientWidth + 1)
        .map(each => each.outerHTML)"""
    assert page.locator(".label, .name, h3, dd, .time, .value").evaluate_all(cut) == []


@IN_A_BROWSER
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(
    browser: "Browser", address: str, scheme: Literal["light", "dark"]
) -> None:
    with opened(browser, address, scheme) as page:
        page.get_by_label("Choose images").set_input_files(SEVEN)
        expect(page.locator(".answer .bars li")).to_have_count(5)
        pairs = page.locator("p, h1, h2, h3, a, dt, dd, label, button, .time, .value").evaluate_all(
            """elements => elements.filter(each => each.offsetParent).map(each => {
                const seen = (of) => getComputedStyle(of).backgroundColor;
                let under = each;
                while (under && /, 0\\)$/.test(seen(under))) under = under.parentElement;
                return [getComputedStyle(each).color, seen(under ?? document.body)];
            })"""
        )
        assert len(pairs) > 20
        assert min(contrast(*map(luminance, pair)) for pair in pairs) >= 4.5


def luminance(colour: str) -> float:
    """WCAG's relative luminance of rgb(r, g, b)."""
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: float, other: float) -> float:
    """WCAG's contrast ratio of two luminances."""
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)
