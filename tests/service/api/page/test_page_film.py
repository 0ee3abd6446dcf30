"""The film that shows five tasks of a new user of the page."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.servers.several_models import save_channels
from tests.support.service.browser import IN_A_BROWSER, View, convoy_at, opened
from tests.support.service.film import TASKS, film

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def two_presets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a server of one network with two presets."""
    folder = tmp_path_factory.mktemp("channels")
    save_channels(folder / "channels.onnx", 64, 64)
    (folder / "labels.txt").write_text("red\ngreen\nblue\n")
    with convoy_at(
        folder / "channels.onnx", "--preset", "imagenet", "--beside", "preset=raw"
    ) as address:
        yield address


@IN_A_BROWSER
def test_each_task_takes_two_clicks_at_most_and_all_five_minutes(
    browser: "Browser", two_presets: str, view: View
) -> None:
    begun = time.monotonic()
    with opened(browser, two_presets, view) as page:
        clicks = dict(film(page))
    assert list(clicks) == [task.__name__ for task in TASKS]
    assert list(clicks.values()) == [0, 2, 2, 1, 1]  # two at most
    assert time.monotonic() - begun < 300
