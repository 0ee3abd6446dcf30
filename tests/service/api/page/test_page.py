"""The pages at / and /docs load nothing from other hosts, and all their functions work in a
browser."""

import io
import re
import subprocess
import sys
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

from models import BUILT_IN_MODEL, load_classifier
from service.images.prepare import ImageLimits, prepare_image
from tests.support import ROOT
from tests.support.service.browser import (
    IN_A_BROWSER,
    SAMPLES,
    SEVEN,
    View,
    convoy_at,
    expect,
    opened,
    said_by,
)
from tests.support.service.client import serving

PAGE = ROOT / "service/api/page"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("page", "some"),
    [("/", {"page/page.js", "page/page.css", "docs"}), ("/docs", {"page/docs.js"})],
)
async def test_a_page_and_all_it_names_are_there_under_any_prefix(
    page: str, some: set[str]
) -> None:
    async with serving() as (client, _):
        answer = await client.get(page)
        assert answer.status_code == 200
        named = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
        assert some <= set(named)
        for address in named:
            assert not address.startswith(("/", "http")), address
            assert (await client.get("/" + address)).status_code == 200, address
        assert (await client.head(page)).status_code == 200
        assert (await client.get("/page/../__init__.py")).status_code == 404


@pytest.mark.anyio
async def test_a_page_is_asked_for_again_and_swagger_ui_never() -> None:
    async with serving() as (client, _):
        docs = await client.get("/docs")
        (script,) = re.findall(r'src="(page/swagger-ui/[^"]+)"', docs.text)
        bundle = await client.get("/" + script)
        assert version("fastapi-swagger") in script
        assert re.search(r'PACKAGE_VERSION:"5\.', bundle.text)  # knows OpenAPI 3.1
        assert bundle.headers["cache-control"] == "public, max-age=31536000, immutable"
        for address in ("/", "/docs", "/page/page.js", "/page/docs.js"):
            assert (await client.get(address)).headers["cache-control"] == "no-cache", address


@pytest.mark.anyio
async def test_a_page_may_load_its_own_files_and_nothing_else() -> None:
    async with serving() as (client, _):
        for address in ("/", "/docs"):
            headers = (await client.get(address)).headers
            policy = directives(headers["content-security-policy"])
            images = policy.pop("img-src")
            assert images == ["'self'", "data:" if address == "/docs" else "blob:"]
            assert {tuple(sources) for sources in policy.values()} == {("'none'",), ("'self'",)}
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert "camera=(self)" in headers["permissions-policy"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "path",
    ["/", "/docs", "/page/page.js", "/openapi.json", "/metrics", "/v2", "/nowhere", "/v1/classify"],
)
async def test_whatever_a_browser_may_show_is_neither_guessed_at_nor_framed(path: str) -> None:
    async with serving() as (client, _):
        for answer in (await client.get(path), await client.head(path)):
            policy = directives(answer.headers["content-security-policy"])
            for kind in ("default-src", "base-uri", "form-action", "frame-ancestors"):
                assert policy[kind] == ["'none'"], kind
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"


def directives(policy: str) -> dict[str, list[str]]:
    """Return the sources that a Content-Security-Policy allows, by directive."""
    kinds = [part.split() for part in policy.split(";")]
    return {kind: sources for kind, *sources in kinds}


def test_nothing_comes_from_elsewhere() -> None:
    for file in (*PAGE.glob("*.html"), *(PAGE / "files").iterdir()):
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"^\s*//.*", "", text, flags=re.MULTILINE).replace(" //", ""), (
            file
        )
        assert "innerHTML" not in text, file


def test_the_scripts_have_one_purpose_each_and_are_short() -> None:
    scripts = sorted((PAGE / "files").glob("*.js"))
    lines = {script.name: script.read_text(encoding="utf-8").splitlines() for script in scripts}
    assert sum(map(len, lines.values())) < 1500
    assert all(first.startswith("// ") for first, *_ in lines.values()), "each says its purpose"
    imported = set(re.findall(r'from "\./(\w+\.js)"', "".join(map("\n".join, lines.values()))))
    assert set(lines) - imported == {"page.js", "docs.js"}, "nothing lies unused"


@pytest.mark.anyio
async def test_the_pixels_that_a_model_gets_are_shown() -> None:
    with convoy_at("--threads", "1") as address:
        async with httpx.AsyncClient(base_url=address) as client:
            path, jpeg = "/v1/models/digits/pixels", {"content-type": "image/jpeg"}
            answer = await client.post(path, content=SEVEN.read_bytes(), headers=jpeg)
            assert answer.headers["content-type"] == "image/png"
            shown = np.asarray(Image.open(io.BytesIO(answer.content)))
            meaning = load_classifier(BUILT_IN_MODEL).preprocessing
            file = prepare_image(SEVEN.read_bytes(), meaning, ImageLimits())
            assert (shown == file.run().squeeze()).all()
            # No batch had it: the model's images, their time and their batches are unchanged.
            text = (await client.get("/metrics")).text
            counts = re.findall(r"^convoy_(\w+){model=\"digits\"[^}]*} (\d+)\.0$", text, re.M)
            assert {"images_total": "0", "request_duration_seconds_count": "0"}.items() <= dict(
                counts
            ).items()
            assert ("requests_total", "1") in counts
            two = [("file", SEVEN.read_bytes())] * 2
            refused = await client.post(path, files=two)
            assert (refused.status_code, refused.json()["error"]) == (
                422,
                "the request has 2 images; send one image",
            )
            refused = await client.post(f"{path}?top_k=1", content=b"x", headers=jpeg)
            assert refused.status_code == 422
            assert "this path takes no parameters" in refused.json()["error"]
            assert (await client.post(path, content=b"x", headers=jpeg)).status_code == 415


@IN_A_BROWSER
def test_the_first_example_is_answered_without_a_click(page: "Page") -> None:
    expect(page.locator("#state")).to_have_text("digits: ready")
    expect(page.locator(".answer .label").first).to_have_text("0")
    expect(page.locator(".answer .bars").first.locator("li")).to_have_count(5)
    expect(page.locator("#latest")).to_contain_text("0_white_on_black.png: 0,")
    expect(page.locator(".answer .time").first).to_have_text(
        re.compile(r"^[\d.]+ ms: decode [\d.]+, wait [\d.]+, model [\d.]+$")
    )
    expect(page.locator("#drawer")).to_be_hidden()
    expect(
        page.get_by_role("button", name="Map by last layer")
    ).to_be_hidden()  # its network has none


@IN_A_BROWSER
def test_an_image_is_answered_and_the_code_does_the_same(page: "Page") -> None:
    page.get_by_label("Choose images").set_input_files(SEVEN)
    expect(page.locator("#latest")).to_contain_text("7_faint_on_grey.jpg: 7,")
    expect(page.locator(".answer .label").first).to_have_text("7")
    assert page.locator("#image").evaluate("image => image.naturalWidth") > 0
    page.get_by_role("button", name="Code").click()
    line, python, javascript = (
        page.locator(f"#{language}").inner_text() for language in ("curl", "python", "javascript")
    )
    done = subprocess.run(line, shell=True, cwd=SAMPLES, capture_output=True, text=True, check=True)
    assert done.stdout.startswith('{"model":"digits","results":[{"predictions":[{"index":7')
    command = [sys.executable, "-c", python]
    done = subprocess.run(command, cwd=SAMPLES, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[{'index': 7, 'label': '7'")
    predictions = said_by(page, javascript, SEVEN)
    assert (len(predictions), predictions[0]["label"]) == (5, "7")


@IN_A_BROWSER
def test_what_the_network_saw_is_its_own_pixels(page: "Page") -> None:
    page.get_by_label("Choose images").set_input_files(SEVEN)
    page.get_by_role("button", name="What it saw").click()
    crop = page.locator("#crop")
    expect(crop).to_be_visible()
    expect(crop).to_have_js_property("naturalWidth", 32)
    expect(page.locator("#image")).to_be_hidden()
    page.get_by_role("button", name="Image", exact=True).click()
    expect(page.locator("#image")).to_be_visible()


@IN_A_BROWSER
def test_where_it_looked_takes_seven_batches_of_seven(page: "Page") -> None:
    page.get_by_label("Choose images").set_input_files(SEVEN)
    expect(page.locator(".answer .label").first).to_have_text("7")
    asked: list[str] = []
    page.on(
        "request", lambda request: asked.append(request.url) if request.method == "POST" else None
    )
    before = _images(page)
    page.get_by_role("button", name="Map by covering").click()
    expect(page.locator("#looked")).to_have_text(
        'The warmer an area, the more "7" rests on it (found by covering parts one by one)',
        timeout=30_000,
    )
    expect(page.locator("#batches-run .done")).to_have_count(7)
    assert len(asked) == 7
    assert _images(page) - before == 49
    drawn = """canvas => canvas.getContext("2d")
        .getImageData(0, 0, canvas.width, canvas.height).data.some(value => value > 0)"""
    assert page.locator("#heat").evaluate(drawn)
    page.get_by_label("Strength").fill("20")
    assert page.locator("#heat").evaluate("canvas => canvas.style.opacity") == "0.2"


def _images(page: "Page") -> float:
    """Return the number of images that the server has answered."""
    answer = page.request.get(page.url.partition("#")[0] + "metrics")
    return sum(map(float, re.findall(r"^convoy_images_total{.*} (\S+)$", answer.text(), re.M)))


@IN_A_BROWSER
def test_batches_grow_where_images_arrive_together(page: "Page") -> None:
    button, said = page.get_by_role("button", name="Send 200 images"), page.locator("#said")
    largest: list[int] = []
    # Which batches form depends on the cores' time; two processes share what waits.
    while len(largest) < 5 and max(largest, default=0) < 3:
        button.click()
        expect(button).to_be_disabled()
        expect(button).to_be_enabled(timeout=60_000)
        expect(said).to_contain_text("200 images in")
        largest.append(int(said.inner_text().rpartition(" ")[2]))
    assert 3 <= max(largest) <= 8
    drawn = """canvas => canvas.getContext("2d")
        .getImageData(0, 0, canvas.width, canvas.height).data.some(value => value > 0)"""
    assert page.locator("#lanes").evaluate(drawn)
    expect(page.locator("#sizes li")).to_have_count(8)
    expect(page.locator("#p99")).to_contain_text(" ms")


@IN_A_BROWSER
def test_what_is_no_image_is_refused_by_name_and_the_next_one_taken(page: "Page") -> None:
    page.get_by_label("Choose images").set_input_files(BUILT_IN_MODEL)
    expect(page.get_by_role("alert")).to_contain_text("digits.onnx: these")
    page.get_by_label("Choose images").set_input_files(SEVEN)
    expect(page.locator(".answer .label").first).to_have_text("7")
    expect(page.locator("#errors")).to_be_empty()


@IN_A_BROWSER
def test_a_digit_is_classified_while_it_is_drawn(page: "Page") -> None:
    expect(page.locator(".answer .label").first).to_have_text("0")
    box = page.locator("#pad").bounding_box()
    assert box
    # A seven.
    for corner, (u, v) in enumerate([(0.28, 0.22), (0.72, 0.22), (0.45, 0.8)]):
        page.mouse.move(box["x"] + box["width"] * u, box["y"] + box["height"] * v, steps=10)
        if corner == 0:
            page.mouse.down()
    expect(page.locator(".answer .label").first).to_have_text("7")  # the pen is still down
    page.mouse.up()
    expect(page.locator(".answer .name").first).to_have_text("drawing.png")
    page.get_by_role("button", name="Draw").click()
    assert _ink(page) == 0
    frame, pad = (page.locator(name).bounding_box() for name in ("#frame", "#pad"))
    assert frame
    assert pad
    assert pad["x"] - frame["x"] >= 20, "a finger scrolls the page beside the pad"


@IN_A_BROWSER
def test_a_finger_draws_on_the_pad_and_scrolls_beside_it(
    browser: "Browser", address: str, view: View
) -> None:
    low = view._replace(height=600)  # there is something to scroll
    with opened(browser, address, low, has_touch=True) as page:
        expect(page.locator(".answer .label").first).to_have_text("0")
        expect(page.locator("#pad-keys")).to_have_text(re.compile("with a finger"))
        frame, pad = (page.locator(name).bounding_box() for name in ("#frame", "#pad"))
        assert frame
        assert pad
        touch = page.context.new_cdp_session(page)

        def drag(*points: tuple[float, float]) -> None:
            for place, (x, y) in enumerate(points):
                kind = "touchMove" if place else "touchStart"
                where = {"type": kind, "touchPoints": [{"x": x, "y": y}]}
                touch.send("Input.dispatchTouchEvent", where)
            touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})

        # A seven, downwards: with a pad that scrolls it would be no stroke.
        corners = [(0.28, 0.22), (0.72, 0.22), (0.45, 0.8)]
        path = [
            (u0 + (u1 - u0) * step / 10, v0 + (v1 - v0) * step / 10)
            for (u0, v0), (u1, v1) in pairwise(corners)
            for step in range(11)
        ]
        drag(*((pad["x"] + pad["width"] * u, pad["y"] + pad["height"] * v) for u, v in path))
        expect(page.locator(".answer .label").first).to_have_text("7")
        expect(page.locator("header")).to_be_in_viewport(ratio=1)
        beside = frame["x"] + 12
        drag(*((beside, pad["y"] + 200 - 20 * step) for step in range(10)))
        expect(page.locator("header")).not_to_be_in_viewport()


@IN_A_BROWSER
def test_a_digit_is_drawn_with_the_keyboard_alone(page: "Page") -> None:
    expect(page.locator(".answer .label").first).to_have_text("0")
    page.get_by_role("button", name="Draw").click()
    expect(page.locator("#pad")).to_be_focused()
    for _ in range(9):
        page.keyboard.press("ArrowUp")
    page.keyboard.press("Space")
    expect(page.locator("#pad")).to_have_attribute("aria-label", "Drawing pad, pen down")
    for _ in range(18):
        page.keyboard.press("ArrowDown")
    assert _ink(page) > 0
    expect(page.locator(".answer .label").first).to_have_text("1")
    page.keyboard.press("Escape")
    assert _ink(page) == 0
    expect(page.locator(".answer .label").first).to_have_text("…")
    expect(page.locator(".answer .time").first).to_have_text("draw a digit")


def _ink(page: "Page") -> int:
    """Return the number of dark pixels on the pad."""
    dark: int = page.locator("#pad").evaluate(
        """pad => pad.getContext("2d").getImageData(0, 0, pad.width, pad.height)
            .data.filter((value, i) => i % 4 === 0 && value < 128).length"""
    )
    return dark


@IN_A_BROWSER
def test_the_page_is_dark_where_dark_is_wanted(browser: "Browser", address: str) -> None:
    def ground(page: "Page") -> str:
        colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return colour

    dark_view = View(scheme="dark")
    with opened(browser, address) as light:
        bright = ground(light)
    with opened(browser, address, dark_view) as dark:
        assert ground(dark) != bright
    with opened(browser, f"{address}/docs", dark_view) as docs:
        expect(docs.locator("html")).to_have_class("dark-mode")
        expect(docs.locator(".opblock").first).to_contain_text("Classify images")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Return a file with one API key."""
    keys = tmp_path / "keys"
    keys.write_text("right-key\n")
    keys.chmod(0o600)
    return keys


def test_with_the_interface_let_in_by_a_key_its_files_need_none(keys: Path) -> None:
    with convoy_at("--api-key-file", keys) as address, httpx.Client(base_url=address) as client:
        assert client.get("/docs").status_code == 401
        docs = client.get("/docs", headers={"x-api-key": "right-key"})
        named = re.findall(r'(?:src|href)="([^"]+)"', docs.text)
        assert len(named) == 4
        assert {client.get("/" + file).status_code for file in named} == {200}


@IN_A_BROWSER
def test_a_server_that_wants_a_key_is_given_it_once_a_tab(browser: "Browser", keys: Path) -> None:
    with convoy_at("--api-key-file", keys) as address, opened(browser, address) as page:
        expect(page.locator("#state")).to_have_text("enter the server's API key")
        field = page.get_by_label("API key")
        field.fill("wrong-key")
        field.press("Enter")
        expect(field).to_have_value("")
        expect(field).to_be_visible()  # wanted again
        expect(page.locator("#state")).to_have_text("this API key is unknown; enter another key")
        expect(page.get_by_label("Drawing pad")).to_be_hidden()
        field.fill("right-key")
        page.get_by_role("button", name="Use", exact=True).click()
        expect(page.locator("#state")).to_have_text("digits: ready")
        expect(field).to_be_hidden()
        page.get_by_label("Choose images").set_input_files(SEVEN)
        expect(page.locator(".answer .label").first).to_have_text("7")
        page.reload()
        expect(page.locator("#state")).to_have_text("digits: ready")
        expect(field).to_be_hidden()
        assert page.evaluate("document.cookie + localStorage.length") == "0"


@IN_A_BROWSER
def test_the_interface_is_shown_with_every_operation_and_tried_out(
    browser: "Browser", address: str
) -> None:
    with opened(browser, f"{address}/docs") as docs:
        answer = docs.request.get(f"{address}/openapi.json")
        operations = [method for path in answer.json()["paths"].values() for method in path]
        expect(docs.locator(".opblock")).to_have_count(len(operations))
        ready = docs.locator(".opblock", has_text="/v2/health/ready")
        ready.locator(".opblock-summary-control").click()
        ready.get_by_role("button", name="Try it out").click()
        ready.get_by_role("button", name="Execute").click()
        expect(ready.locator(".live-responses-table .response .response-col_status")).to_have_text(
            "200"
        )
