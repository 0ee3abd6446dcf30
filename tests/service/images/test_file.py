"""A format has the same marks, names and media type wherever images are accepted or sent."""

import re
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from loadtest.images import load_images
from service.cli.classify import IMAGE_SUFFIXES
from service.http.body import IMAGE_TYPES
from service.images.file import FORMATS, ImageFormat
from service.images.header import parse_image_file
from tests.support import ROOT
from tests.support.images.files import encode

EACH_FORMAT = pytest.mark.parametrize("kind", ImageFormat, ids=lambda kind: kind.name)


@EACH_FORMAT
def test_a_format_is_recognised_by_its_marks_and_read(kind: ImageFormat) -> None:
    data = encode(Image.new("RGB", (4, 3)), kind.name)
    assert ImageFormat.of(data) is kind
    assert parse_image_file(data).format is kind
    for at, mark in kind.signature.marks.items():
        other = bytes(255 - byte for byte in mark)
        assert ImageFormat.of(data[:at] + other + data[at + len(mark) :]) is not kind


@EACH_FORMAT
def test_a_format_is_accepted_by_every_way_in(kind: ImageFormat, tmp_path: Path) -> None:
    assert kind.media_type in IMAGE_TYPES
    assert set(kind.suffixes) <= IMAGE_SUFFIXES
    page = (ROOT / "service/api/page/index.html").read_text(encoding="utf-8")
    (accepted,) = re.findall(r'id="files" type="file" accept="([^"]*)"', page)
    assert kind.media_type in accepted.split(",")
    for suffix in kind.suffixes:
        (tmp_path / f"image{suffix}").write_bytes(b"x")
    assert {image.media_type for image in load_images(tmp_path)} == {kind.media_type}
    for script in ("classify.lua", "hey.sh", "locustfile.py"):
        said = (ROOT / "deploy/loadtest" / script).read_text(encoding="utf-8")
        assert all(suffix.removeprefix(".") in said for suffix in (*kind.suffixes, kind.media_type))
    clips = (ROOT / "service/api/page/files/clip.js").read_text(encoding="utf-8")
    (subtypes,) = re.findall(r"\^image\\/\(([\w|]+)\)\$", clips)
    is_frame = kind.media_type.removeprefix("image/") in subtypes.split("|")
    assert is_frame is (kind is not ImageFormat.GIF)  # which is a clip of its own


def test_every_list_of_the_formats_is_whole() -> None:
    """Also those in prose, which no table makes."""
    places = ["README.md", "docs", "deploy", "service", "loadtest"]
    command = ["git", "grep", "-hoE", r"JPEG, PNG(, \w+)* (or|and) \w+", "--", *places]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert len(found.splitlines()) >= 8, "this is no checkout of git"
    assert {each.replace(" and ", " or ") for each in found.splitlines()} == {FORMATS}
