"""Does five tasks on the page, each with at most two clicks, and takes a screenshot after each.

    python -m tests.support.service.film FOLDER MODEL [FLAG...]

FOLDER gets one PNG per task. docs/page.png is the PNG of the last task. The task with two presets
works only if the server has the flag `--beside preset=raw`.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.service.browser import View, convoy_at, expect, launched, opened

if TYPE_CHECKING:
    from playwright.sync_api import Page


# Counts a user's clicks with a mouse. A choice from a list takes two clicks, one of which opens the
# list.
_COUNT = """() => {
    window.clicks = 0;
    const count = (kind, of) => addEventListener(kind, event => (clicks += of(event)), true);
    count("click", event => event.isTrusted);
    count("change", event => 2 * event.target.matches("select"));
}"""


def first_answer(page: "Page") -> None:
    """Without a click, the page classifies the first example."""
    expect(page.locator("#latest")).not_to_be_empty(timeout=30_000)
    expect(page.locator(".answer .time").first).to_contain_text("ms: decode")


def camera(page: "Page") -> None:
    """One click starts classifying the camera's images, and another click stops this."""
    page.get_by_role("button", name="Use the camera").click()
    expect(page.locator("#camera-label")).to_contain_text("%", timeout=30_000)
    expect(page.locator("#camera-time")).to_contain_text("in the server")
    times: set[str] = set()
    while len(times) < 3:  # it continues without a click
        times.add(page.locator("#camera-time").inner_text())
        page.wait_for_timeout(50)
    page.get_by_role("button", name="Close the camera").click()


def two_presets(page: "Page") -> None:
    """One choice makes the page show, next to the first answer, the answer with a second preset."""
    page.get_by_label("Beside").select_option(index=page.locator("#beside option").count() - 1)
    expect(page.locator("#agreement")).to_contain_text("gree", timeout=30_000)
    names = page.locator(".answer .name").all_inner_texts()
    assert len({name.partition(":")[0] for name in names}) == 2
    for time in page.locator(".answer .time").all_inner_texts():
        assert "ms: decode" in time


def batches_grow(page: "Page") -> None:
    """One click sends 200 images."""
    page.get_by_role("button", name="Send 200 images").click()
    expect(page.locator("#said")).to_contain_text("200 images in", timeout=120_000)
    largest = page.locator("#said").inner_text().rpartition(" ")[2]
    assert int(largest) > 1


def where_it_looked(page: "Page") -> None:
    """One click makes the page draw the basis of the label."""
    page.get_by_role("button", name="Map by covering").click()
    expect(page.locator("#looked")).to_contain_text("rests on it", timeout=60_000)
    expect(page.locator("#batches-run .done")).to_have_count(7)


TASKS: tuple[Callable[["Page"], None], ...] = (
    first_answer,
    camera,
    two_presets,
    batches_grow,
    where_it_looked,
)


def film(page: "Page") -> Iterator[tuple[str, int]]:
    """Do the tasks one after another. Yield the name of each finished task, and the number of
    clicks."""
    page.evaluate(_COUNT)
    done = 0
    for task in TASKS:
        task(page)
        clicks: int = page.evaluate("window.clicks")
        yield task.__name__, clicks - done
        done = clicks


def main(folder: Path, *flags: str) -> None:
    """Take the screenshots."""
    view = View(1024, 1180, "dark")
    with (
        convoy_at(*flags) as address,
        launched() as browser,
        opened(browser, address, view) as page,
    ):
        for number, (name, clicks) in enumerate(film(page), start=1):
            page.wait_for_timeout(1500)
            page.screenshot(path=folder / f"{number}-{name}.png")
            print(f"{name}: {clicks} clicks")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
