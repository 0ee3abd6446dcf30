"""Opens a page of a real server in Chromium. A conftest can import the fixtures."""

import importlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

from models import BUILT_IN_MODEL
from tests.support.servers.forked import CONVOY, Forked

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_PLAYWRIGHT: Any = None
with suppress(ImportError):
    _PLAYWRIGHT = importlib.import_module("playwright.sync_api")
expect: Any = getattr(_PLAYWRIGHT, "expect", None)
if expect is not None:
    expect.set_options(timeout=30_000)  # ms: what a busy machine takes is no fault

SAMPLES = BUILT_IN_MODEL.parent / "samples"
SEVEN = SAMPLES / "7_faint_on_grey.jpg"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
IN_A_BROWSER = pytest.mark.skipif(
    CHROMIUM is None or _PLAYWRIGHT is None,
    reason="needs Chromium, and playwright to drive it: pip install -e '.[long]'",
)
# Nothing but loopback: without these, Chromium talks to its maker at every start.
_QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
# A camera that shows a test image, and is granted.
_CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@contextmanager
def convoy_at(*flags: str | Path) -> Iterator[str]:
    """Yield the address of a real server of the built-in model."""
    process = Forked(CONVOY, "serve", "--port", "0", *flags, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        match = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert match
        yield match[0]
    finally:
        process.terminate()
        process.communicate(60)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Yield the address of a real server of the built-in model."""
    with convoy_at() as address:
        yield address


@contextmanager
def launched() -> Iterator["Browser"]:
    """Yield Chromium without a window."""
    with _PLAYWRIGHT.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", *_QUIET, *_CAMERA]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with launched() as browser:
        yield browser


class View(NamedTuple):
    """Describes a window: its size in pixels, and the colour scheme that its user prefers."""

    width: int = 1024
    height: int = 768
    scheme: Literal["light", "dark"] = "light"


VIEWS = [
    View(width, height, scheme)
    for width, height in ((1024, 768), (390, 844), (1600, 1000))
    for scheme in ("light", "dark")
]
"""The views of a tablet, a phone and a large screen. Tests with any view but the first are marked
slow."""


@contextmanager
def opened(
    browser: "Browser", address: str, view: View = VIEWS[0], **options: Any
) -> Iterator["Page"]:
    """Yield a page in a separate window.

    Fails if a script fails, requests another host, or violates the policy.
    """
    size: Any = {"width": view.width, "height": view.height}
    page = browser.new_page(color_scheme=view.scheme, viewport=size, **options)
    faults: list[str] = []
    origin = address.removesuffix("/docs")
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda asked: _stays_here(asked.url, origin, faults))
    page.on("console", lambda said: _keeps_the_policy(said.text, faults))
    page.goto(address)
    yield page
    page.close()
    assert faults == []


def said_by(page: "Page", script: str, files: Any) -> Any:
    """Put these files into the first file field of a page, run a script, and return the value that
    the script logs."""
    page.evaluate(
        "() => document.body.prepend(Object.assign(document.createElement('input'),"
        " { type: 'file', multiple: true, ariaLabel: 'Own' }))"
    )
    page.get_by_label("Own", exact=True).set_input_files(files)
    with page.expect_console_message() as said:
        page.evaluate(f"async () => {{ {script} }}")
    (logged,) = (argument.json_value() for argument in said.value.args)
    return logged


def _stays_here(url: str, origin: str, faults: list[str]) -> None:
    if not url.startswith((origin + "/", "blob:", "data:")):
        faults.append(f"asked for {url}")


def _keeps_the_policy(text: str, faults: list[str]) -> None:
    if re.search("content security policy|permissions policy|cross-origin", text, re.IGNORECASE):
        faults.append(text)


@pytest.fixture(
    params=[
        pytest.param(view, id="-".join(map(str, view)), marks=[pytest.mark.slow] if place else [])
        for place, view in enumerate(VIEWS)
    ]
)
def view(request: pytest.FixtureRequest) -> View:
    """Return each of VIEWS."""
    one: View = request.param
    return one


@pytest.fixture
def page(browser: "Browser", address: str, view: View) -> Iterator["Page"]:
    with opened(browser, address, view) as page:
        yield page
