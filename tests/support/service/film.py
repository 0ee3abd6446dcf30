"""Does five tasks on the page, each of two clicks at most, and takes a picture after each.

    python -m tests.support.service.film MODEL FOLDER

FOLDER gets one PNG a task; docs/page.png is the last. Two models in MODEL are compared.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.service.browser import convoy_at, expect, launched

if TYPE_CHECKING:
    from playwright.sync_api import Page


def first_answer(page: "Page") -> None:
    """The first example is answered without a click."""
    expect(page.locator("#latest")).not_to_be_empty()


def where_it_looked(page: "Page") -> None:
    """One click draws what the label rests on."""
    page.get_by_role("button", name="Where it looked").click()
    expect(page.locator("#batches-run .done")).to_have_count(7, timeout=30_000)


def two_presets(page: "Page") -> None:
    """One choice shows a second model or preset beside the first."""
    others = page.locator("#beside option").count() - 1
    if others > 1:
        page.get_by_label("Beside").select_option(index=others)
        expect(page.locator("#agreement")).to_contain_text("gree")
        page.get_by_label("Beside").select_option("")


def camera(page: "Page") -> None:
    """One click classifies what the camera sees; one more ends it."""
    page.get_by_role("button", name="Use the camera").click()
    expect(page.locator("#camera-label")).to_contain_text("%")
    page.wait_for_timeout(2000)
    page.get_by_role("button", name="Close the camera").click()


def batches_grow(page: "Page") -> None:
    """One click sends 200 images."""
    page.get_by_role("button", name="Send 200 images").click()
    expect(page.locator("#said")).to_contain_text("200 images in", timeout=60_000)


TASKS: tuple[Callable[["Page"], None], ...] = (
    first_answer,
    camera,
    two_presets,
    batches_grow,
    where_it_looked,
)


def film(model: str, folder: Path) -> None:
    """Do the tasks in one window."""
    with convoy_at(model) as address, launched() as browser:
        page = browser.new_page(viewport={"width": 1024, "height": 1180}, color_scheme="dark")
        page.goto(address)
        for number, task in enumerate(TASKS, start=1):
            task(page)
            page.wait_for_timeout(1500)
            page.screenshot(path=folder / f"{number}-{task.__name__}.png")


if __name__ == "__main__":
    film(sys.argv[1], Path(sys.argv[2]))
