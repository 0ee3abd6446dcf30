"""The page with a model of clips: clips in each form can be chosen, are played and get answers."""

import io
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from models.digits.dataset import handwriting
from tests.support.clips import MODEL_PATH
from tests.support.clips.moving import FRAMES, SIDE, moving
from tests.support.clips.videos import video
from tests.support.images.files import encode
from tests.support.service.browser import (
    IN_A_BROWSER,
    VIEWS,
    View,
    convoy_at,
    expect,
    opened,
    said_by,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Yield the address of a server with the model of moving digits."""
    with convoy_at(MODEL_PATH) as address:
        yield address


@pytest.fixture
def page(browser: "Browser", address: str, view: View) -> Iterator["Page"]:
    with opened(browser, address, view) as page:
        yield page


def frames(motion: str, seed: int = 3) -> list[Image.Image]:
    clip = moving(handwriting()[0].images[seed], motion, np.random.default_rng(seed))
    return [Image.fromarray(frame) for frame in clip]


def named(name: str, kind: str, data: bytes) -> Any:
    return {"name": name, "mimeType": kind, "buffer": data}


def stills(motion: str) -> list[Any]:
    """Return the files of the frames, in an order that differs from a file dialogue's."""
    each = [
        named(f"{n}.png", "image/png", encode(image, "PNG"))
        for n, image in enumerate(frames(motion), 4)
    ]
    return sorted(each, key=lambda one: str(one["name"]))


def archive(motion: str) -> Any:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened_:
        for number, image in enumerate(frames(motion)):
            opened_.writestr(f"{number}.png", encode(image, "PNG"))
    return named("frames.zip", "application/zip", file.getvalue())


def animation(motion: str, kind: str) -> Any:
    first, *others = frames(motion)
    data = encode(first, kind, save_all=True, append_images=others)
    return named(f"clip.{kind.lower()}", f"image/{kind.lower()}", data)


def shown(page: "Page") -> int:
    """Return the number of the frame on display."""
    return int(page.locator("#frame-at").input_value())


@IN_A_BROWSER
def test_the_first_example_is_a_clip_that_plays_and_is_answered(page: "Page") -> None:
    expect(page.locator("#state")).to_have_text("moving: ready")
    expect(page.locator(".answer .label").first).to_have_text("growing")
    expect(page.locator("#latest")).to_contain_text("digit_growing.gif: growing,")
    film = page.locator("#crop")
    expect(film).to_be_visible()
    expect(film).to_have_js_property("naturalWidth", SIDE)
    expect(film).to_have_js_property("naturalHeight", SIDE * FRAMES)
    box = film.bounding_box()
    assert box
    assert box["width"] == pytest.approx(box["height"])
    seen = set()
    for _ in range(40):
        seen.add(shown(page))
        page.wait_for_timeout(50)
    assert len(seen) == FRAMES
    expect(page.locator("#views")).to_be_hidden()  # of images
    expect(page.locator("#card")).to_contain_text(f"{FRAMES} frames of 32 × 32 grey")
    page.get_by_role("button", name="Classify digit_right.gif").click()
    expect(page.locator(".answer .label").first).to_have_text("right")


@IN_A_BROWSER
def test_a_clip_is_paused_and_seen_frame_by_frame(page: "Page") -> None:
    expect(page.locator("#playing")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    still = shown(page)
    page.wait_for_timeout(400)
    assert shown(page) == still
    places = []
    for number in ("0", "3", "7"):
        page.get_by_label("Frame").fill(number)
        places.append(
            page.locator("#crop").evaluate("film => getComputedStyle(film).objectPosition")
        )
    assert [round(float(place.split()[1].rstrip("%"))) for place in places] == [0, 43, 100]
    page.get_by_role("button", name="Play").click()
    page.wait_for_timeout(400)
    assert shown(page) != 7


@IN_A_BROWSER
def test_a_clip_stands_still_where_motion_is_not_wanted(browser: "Browser", address: str) -> None:
    with opened(browser, address, reduced_motion="reduce") as page:
        expect(page.get_by_role("button", name="Play")).to_be_visible()
        page.wait_for_timeout(400)
        assert shown(page) == 0


@IN_A_BROWSER
def test_a_clip_in_each_of_its_forms_is_answered(page: "Page") -> None:
    accepted = page.get_by_label("Choose a clip").first.get_attribute("accept") or ""
    for kind in ("image/png", "image/gif", "application/zip", "video/mp4", "video/webm"):
        assert kind in accepted
    label, latest = page.locator(".answer .label").first, page.locator("#latest")
    for motion, files in {
        "up": stills("up"),
        "left": [animation("left", "GIF")],
        "down": [animation("down", "WebP")],
        "shrinking": [archive("shrinking")],
        "right": [named("clip.mp4", "video/mp4", video(frames("right")))],
        "growing": [
            named("clip.webm", "video/webm", video(frames("growing"), "webm", "libvpx-vp9"))
        ],
    }.items():
        page.get_by_label("Choose a clip").first.set_input_files(files)
        expect(latest).to_contain_text(f": {motion},")
        expect(label).to_have_text(motion)
        expect(page.locator("#playing")).to_be_visible()
    expect(page.locator("#errors")).to_be_empty()
    expect(page.locator(".tile")).to_have_count(6)
    page.locator(".tile", has_text="up").click()
    expect(page.locator(".answer .name").first).to_have_text("4.png and 7 more")


@IN_A_BROWSER
def test_stills_are_one_clip_and_each_animation_another(page: "Page") -> None:
    files = [*stills("down"), animation("left", "GIF"), animation("up", "PNG")]
    page.get_by_label("Choose a clip").first.set_input_files(files)
    expect(page.locator("#count")).to_have_text("3")
    labels = page.locator(".tile-label").all_text_contents()
    assert sorted(labels) == ["down", "left", "up"]


@IN_A_BROWSER
def test_the_code_sends_all_frames_of_a_clip(page: "Page", tmp_path: Path) -> None:
    files = stills("left")
    for file in files:
        (tmp_path / file["name"]).write_bytes(file["buffer"])
    page.get_by_label("Choose a clip").first.set_input_files(files)
    expect(page.locator("#latest")).to_contain_text(": left,")
    page.get_by_role("button", name="Code").click()
    line, python, javascript = (
        page.locator(f"#{language}").inner_text() for language in ("curl", "python", "javascript")
    )
    done = subprocess.run(
        line, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith('{"model":"moving","results":[{"predictions":[{"index":0')
    command = [sys.executable, "-c", python]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[{'index': 0, 'label': 'left'")
    in_order = sorted(files, key=lambda file: int(file["name"].partition(".")[0]))
    assert said_by(page, javascript, in_order)[0]["label"] == "left"


@IN_A_BROWSER
def test_a_broken_clip_is_refused_by_name_and_the_next_one_taken(page: "Page") -> None:
    broken = animation("up", "GIF")
    broken["buffer"] = broken["buffer"][:-50]
    page.get_by_label("Choose a clip").first.set_input_files([broken])
    expect(page.get_by_role("alert")).to_contain_text(
        "clip.gif: the GIF is truncated: the file ends too early"
    )
    expect(page.locator("#playing")).to_be_hidden()
    page.get_by_label("Choose a clip").first.set_input_files([archive("up")])
    expect(page.locator(".answer .label").first).to_have_text("up")
    expect(page.locator("#errors")).to_be_empty()


@IN_A_BROWSER
def test_the_frame_that_is_shown_is_saved_with_the_answer(page: "Page") -> None:
    expect(page.locator("#playing")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as PNG").click()
    drawn = np.asarray(Image.open(download.value.path()).convert("L"))
    assert np.ptp(drawn[60:460, 60:460]) > 60, "the digit is there"


@IN_A_BROWSER
def test_what_the_camera_sees_is_sent_as_a_clip(page: "Page") -> None:
    expect(page.locator("#latest")).not_to_be_empty()
    # Chromium does not show the files of a form that was sent.
    page.evaluate(
        """() => { window.sent = []; const send = window.fetch; window.fetch = (path, asked) => {
            if (asked?.method === "POST" && path.includes("/classify")) {
                window.sent.push(asked.body.getAll("file").length);
            }
            return send(path, asked); } }"""
    )
    page.get_by_role("button", name="Use the camera").click()
    expect(page.locator("#camera-label")).to_contain_text("%")
    for _ in range(100):
        if FRAMES in page.evaluate("window.sent"):
            break
        page.wait_for_timeout(100)
    page.get_by_role("button", name="Close the camera").click()
    sent = page.evaluate("window.sent")
    assert sent[0] == 2
    assert max(sent) == FRAMES
    expect(page.locator("#playing")).to_be_visible()


# What a browser makes of a second of its camera.
_RECORD = """async (kind) => {
    const stream = await navigator.mediaDevices.getUserMedia({ video: true });
    const recorder = new MediaRecorder(stream, { mimeType: kind });
    const parts = [];
    recorder.ondataavailable = ({ data }) => parts.push(data);
    const stopped = new Promise((resolve) => (recorder.onstop = resolve));
    recorder.start(200);
    await new Promise((resolve) => setTimeout(resolve, 1000));
    recorder.stop();
    await stopped;
    for (const track of stream.getTracks()) track.stop();
    const field = document.getElementById("files");
    const chosen = new DataTransfer();
    chosen.items.add(new File(parts, "recorded", { type: kind.split(";")[0] }));
    field.files = chosen.files;
    field.dispatchEvent(new Event("change", { bubbles: true }));
}"""


@IN_A_BROWSER
@pytest.mark.parametrize("container", ["webm", "mp4", "x-matroska"])
def test_what_a_browser_records_is_a_clip(browser: "Browser", address: str, container: str) -> None:
    codecs = {"webm": ["vp8", "vp9", "av1"], "mp4": ["avc1", "vp9", "av01"], "x-matroska": ["avc1"]}
    with opened(browser, address) as page:
        expect(page.locator("#playing")).to_be_visible()
        for number, codec in enumerate(codecs[container], 1):
            kind = f"video/{container};codecs={codec}"
            if not page.evaluate("kind => MediaRecorder.isTypeSupported(kind)", kind):
                pytest.skip(f"this Chromium does not record {kind}")
            page.evaluate(_RECORD, kind)
            expect(page.locator(".tile")).to_have_count(number)
            expect(page.locator("#latest")).to_contain_text("recorded: ", timeout=120_000)
            expect(page.locator("#progress")).to_be_hidden()
        expect(page.locator("#errors")).to_be_empty()


@IN_A_BROWSER
def test_two_hundred_clips_join_batches(page: "Page") -> None:
    expect(page.locator("#playing")).to_be_visible()
    button = page.get_by_role("button", name="Send 200 clips")
    button.click()
    expect(page.locator("#said")).to_contain_text("200 images in", timeout=60_000)


@IN_A_BROWSER
@pytest.mark.parametrize("view", VIEWS[::2], ids=lambda view: str(view.width))
def test_nothing_is_cut_and_axe_finds_nothing(browser: "Browser", address: str, view: View) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="needs axe-playwright-python: pip install -e '.[long]'",
    )
    with opened(browser, address, view) as page:
        expect(page.locator("#playing")).to_be_visible()
        page.get_by_label("Choose a clip").first.set_input_files(
            [archive("up"), animation("left", "GIF")]
        )
        expect(page.locator("#count")).to_have_text("2")
        expect(page.locator("#playing")).to_be_visible()
        time = page.locator(".answer .time").first.bounding_box()
        assert time
        assert time["y"] + time["height"] <= view.height
        assert page.evaluate("document.documentElement.scrollWidth") <= view.width
        found = axe.Axe().run(page).response["violations"]
        assert {fault["id"]: [node["html"] for node in fault["nodes"]] for fault in found} == {}
