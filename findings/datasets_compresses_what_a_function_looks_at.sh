#!/usr/bin/env bash
# datasets 5.2.0 (Hugging Face), Pillow 13.0.0: a function that only looks at an image in
# Dataset.map changes that image. Its JPEG file is compressed once more, with quality 75.
#
# map adds what the function returns to the row. A function that returns a number is expected to
# leave the images alone. But map takes each value that the function has read from the row that was
# decoded for it, and encodes an image again, in its own format and with Pillow's default options:
# JPEG becomes JPEG of quality 75, and lossless WebP becomes lossy WebP. So a data set whose images
# are stored as bytes, as in Parquet files, loses details when a statistic, an embedding or a label
# is computed from its images. A function that does not read the image leaves it alone, and filter
# leaves it alone whatever it reads.
#
# An image of 600×400 pixels in a JPEG file of quality 95 and in a lossless WebP file. Seen:
#   JPEG, map to a constant: the same file
#   JPEG, map to the mean of the image: 48% of the bytes, pixels differ by up to 29
#   JPEG, filter by the mean of the image: the same file
#   WEBP, map to a constant: the same file
#   WEBP, map to the mean of the image: 15% of the bytes, pixels differ by up to 29
#   WEBP, filter by the mean of the image: the same file
# Expected: the same file six times. No warning. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export HF_HOME="$folder/hf" HF_HUB_OFFLINE=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    datasets==5.2.0 pillow==13.0.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import io

import datasets
import numpy as np
from PIL import Image

datasets.disable_progress_bars()
noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
picture = Image.fromarray(noise).resize((600, 400), Image.Resampling.BICUBIC)


def pixels(file):
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).astype(int)


def stored(rows):
    return rows.cast_column("image", datasets.Image(decode=False))[0]["image"]["bytes"]


for suffix, options in (("JPEG", {"quality": 95}), ("WEBP", {"lossless": True})):
    stream = io.BytesIO()
    picture.save(stream, suffix, **options)
    file = stream.getvalue()
    rows = datasets.Dataset.from_list(
        [{"image": {"bytes": file, "path": None}}],
        features=datasets.Features({"image": datasets.Image()}),
    )
    assert stored(rows) == file
    results = {
        "map to a constant": rows.map(lambda row: {"mean": 0.0}),
        "map to the mean of the image": rows.map(lambda row: {"mean": np.mean(row["image"])}),
        "filter by the mean of the image": rows.filter(lambda row: np.mean(row["image"]) > 0),
    }
    for name, result in results.items():
        after = stored(result)
        if after == file:
            print(f"{suffix}, {name}: the same file")
        else:
            error = np.abs(pixels(after) - pixels(file)).max()
            share = round(100 * len(after) / len(file))
            print(f"{suffix}, {name}: {share}% of the bytes, pixels differ by up to {error}")
            assert share < 70 and error > 4, "the loss is small now"
        assert (after != file) == name.startswith("map to the mean"), "this has changed"
PYTHON
