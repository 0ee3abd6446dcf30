#!/usr/bin/env bash
# datasets 5.2.0 (Hugging Face), Pillow 13.0.0: Dataset.map loses what a function does to an image
# in place, if the data set was made of files. If it was made of bytes, the edit stays.
#
# To store a Pillow image, datasets looks whether the image was opened from a file. If so, it stores
# the path of that file, and neither compares the pixels nor the size. Pillow keeps the path through
# all that changes an image in place: thumbnail, paste, putpixel, putalpha, ImageDraw,
# exif_transpose(in_place=True). So a data set of thumbnails has the full images, and a face or a
# name that was painted over is there again. Functions that return a new image (resize, crop) do as
# expected. With the same images as bytes, for example from a Parquet file, all edits stay, so that
# what was tried with a data set of the Hub fails with a folder of images, and says nothing.
#
# A white PNG file of 60×40 pixels, in a folder and as bytes. Seen:
#   thumbnail((30, 30)): files 60×40, bytes 30×20
#   resize((30, 20)): files 30×20, bytes 30×20
#   painted black: files white, bytes black
#   a black copy: files black, bytes black
# Expected: the same for files and bytes. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HF_HOME="$folder/hf" HF_HUB_OFFLINE=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    datasets==5.2.0 pillow==13.0.0 numpy==2.4.6
mkdir "$folder/pictures"
cat >"$folder/run.py" <<'PYTHON'
import pathlib
import sys

import datasets
from PIL import Image, ImageDraw

datasets.disable_progress_bars()
pictures = pathlib.Path(sys.argv[1])
Image.new("RGB", (60, 40), "white").save(pictures / "white.png")
sources = {
    "files": datasets.load_dataset("imagefolder", data_dir=str(pictures), split="train"),
    "bytes": datasets.Dataset.from_list(
        [{"image": {"bytes": (pictures / "white.png").read_bytes(), "path": None}}],
        features=datasets.Features({"image": datasets.Image()}),
    ),
}


def thumbnail(row):
    row["image"].thumbnail((30, 30))
    return row


def resize(row):
    return {"image": row["image"].resize((30, 20))}


def paint(row):
    ImageDraw.Draw(row["image"]).rectangle((0, 0, 60, 40), fill="black")
    return row


def paint_a_copy(row):
    return paint({"image": row["image"].copy()})


def size(image):
    return f"{image.width}×{image.height}"


def colour(image):
    return {(255, 255, 255): "white", (0, 0, 0): "black"}[image.getpixel((5, 5))]


for name, edit, seen, expected in (
    ("thumbnail((30, 30))", thumbnail, size, ["60×40", "30×20"]),
    ("resize((30, 20))", resize, size, ["30×20", "30×20"]),
    ("painted black", paint, colour, ["white", "black"]),
    ("a black copy", paint_a_copy, colour, ["black", "black"]),
):
    found = {source: seen(rows.map(edit)[0]["image"]) for source, rows in sources.items()}
    print(f"{name}: " + ", ".join(f"{source} {what}" for source, what in found.items()))
    assert list(found.values()) == expected, "this has changed"
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder/pictures"
