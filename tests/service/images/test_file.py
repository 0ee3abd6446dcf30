"""A format has the same signatures, names and media type wherever images are accepted or sent."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from loadtest.images import image_type
from service.cli.classify import IMAGE_SUFFIXES
from service.http.body import IMAGE_TYPES
from service.images.file import ImageFormat
from service.images.prepare import ImageLimits, parse_image_file, prepare_image
from tests.service.images.test_prepare import RGB
from tests.support import ROOT
from tests.support.images.files import encode, heic

EACH_FORMAT = pytest.mark.parametrize("kind", ImageFormat, ids=lambda kind: kind.name)


def example(kind: ImageFormat) -> bytes:
    """Return a small file of a format."""
    return heic() if kind is ImageFormat.HEIF else encode(Image.new("RGB", (4, 3)), kind.name)


@EACH_FORMAT
def test_a_format_is_recognised_by_its_marks_and_read(kind: ImageFormat) -> None:
    data = example(kind)
    assert ImageFormat.of(data) is kind
    if kind.is_read:
        assert parse_image_file(data).format is kind
    found = [marks for marks in kind.marks if all(data.startswith(m, a) for a, m in marks.items())]
    assert found
    for marks in found:
        for at, mark in marks.items():
            other = bytes(255 - byte for byte in mark)
            assert ImageFormat.of(data[:at] + other + data[at + len(mark) :]) is not kind


@pytest.mark.parametrize("kind", [ImageFormat.AVIF, ImageFormat.HEIF], ids=lambda kind: kind.name)
@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_heif_may_name_its_kind_after_the_general_one(kind: ImageFormat, others: int) -> None:
    data = example(kind)
    brand = data[8:12]
    brands = b"mif1" + bytes(4) + b"miaf" * others + brand + b"MiHB" * (2 - others)
    end = int.from_bytes(data[:4], "big")
    # As long as before: where the coded bytes lie stays right.
    general = data[:8] + brands[: end - 8].ljust(end - 8, b"\0") + data[end:]
    assert ImageFormat.of(general) is kind
    if kind.is_read:
        (one, other) = (prepare_image(file, RGB, ImageLimits()).run() for file in (data, general))
        assert (one == other).all()


@EACH_FORMAT
def test_a_format_is_accepted_by_every_way_in(kind: ImageFormat) -> None:
    assert kind.media_type in IMAGE_TYPES
    assert set(kind.suffixes) <= IMAGE_SUFFIXES
    assert {image_type(f"image{suffix}") for suffix in kind.suffixes} == {kind.media_type}


def test_the_documentation_lists_the_formats_in_one_place() -> None:
    page = (ROOT / "docs/http-api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w]+) \| `(image/\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    assert rows == [
        (kind.value, kind.media_type, ", ".join(f"`{suffix}`" for suffix in kind.suffixes))
        for kind in ImageFormat
    ]
    places = ["README.md", "docs", "deploy", "service", "loadtest"]
    command = ["git", "grep", "-hE", r"JPEG, PNG(, \w+)* (or|and) \w+", "--", *places]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert not found


# What docs/development.md promises: a format is its parser, a row of the table and one of the
# parsers. Pillow decodes this one, as others that are not in the table.
_PARSER = """
from service.images.file import ImageFile, ImageFormat, Weight

def parse_ppm(data: bytes) -> ImageFile:
    _, width, height, _, pixels = data.split(maxsplit=4)
    size = int(width), int(height)
    ImageFormat.PPM.check_size(*size)
    sizes = len(pixels), 3 * size[0] * size[1]
    weight = Weight(0.0, 4.5, 2)
    return ImageFile(ImageFormat.PPM, *size, 1, 1, weight, *sizes, [memoryview(data)])
"""
_ROW = '    PPM = "PPM", [{0: b"P6"}], "image/x-portable-pixmap", [".ppm"]\n'

_USED = """
import asyncio
import io

import httpx
import numpy as np
from fastapi import FastAPI
from PIL import Image
from service.api.page import add_pages
from service.cli.classify import IMAGE_SUFFIXES
from service.http.body import IMAGE_TYPES
from service.images.clip import Frames, clips_of
from service.images.file import FORMATS, ImageFormat
from service.images.prepare import ImageLimits, prepare_image
from loadtest.images import image_type
from tests.service.images.test_prepare import RGB
from tests.support.images.files import encode, scene

image = scene(40, 30)
toy, png = (prepare_image(encode(image, kind), RGB, ImageLimits()) for kind in ("PPM", "PNG"))
assert (toy.run() == png.run()).all()
assert "image/x-portable-pixmap" in IMAGE_TYPES and ".ppm" in IMAGE_SUFFIXES
assert "or PPM" in FORMATS, FORMATS
assert image_type("cat.ppm") == "image/x-portable-pixmap"
assert isinstance(clips_of([encode(image, "PPM")] * 2)[0], Frames)

async def page():
    app = FastAPI()
    add_pages(app, 25_000_000)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return (await client.get("/")).text

assert ",image/x-portable-pixmap" in asyncio.run(page())
"""


def test_a_new_format_takes_three_files(tmp_path: Path) -> None:
    for folder in ROOT.iterdir():
        if folder.is_dir() and not folder.name.startswith(".") and folder.name != "service":
            (tmp_path / folder.name).symlink_to(folder)
    images = tmp_path / "service/images"
    images.mkdir(parents=True)
    for folder in (ROOT / "service", ROOT / "service/images"):  # with their bytecode, where it is
        for each in folder.iterdir():
            if each.name not in ("images", "__pycache__"):
                (tmp_path / each.relative_to(ROOT)).symlink_to(each)
    (images / "ppm.py").write_text(_PARSER)
    for name, line, added in (
        ("file.py", "    marks: Sequence[Marks]\n", _ROW),
        (
            "prepare.py",
            "    ImageFormat.GIF: parse_gif_image,\n",
            "    ImageFormat.PPM: parse_ppm,\n",
        ),
        ("prepare.py", "from service.images.png", "from service.images.ppm import parse_ppm\n"),
    ):
        text = (images / name).read_text(encoding="utf-8")
        assert text.count(line) == 1, (name, line)
        (images / name).unlink()
        (images / name).write_text(text.replace(line, added + line))
    done = subprocess.run(
        [sys.executable, "-c", _USED],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
