#!/usr/bin/env bash
# OpenCV 5.0.0 (opencv-python-headless 5.0.0.93) and TensorFlow 2.21.0: if a colour PNG says that it
# is sRGB, its grey pixels are others, and its colours are the same.
#
# A PNG may have a chunk sRGB or gAMA that tells how to display its numbers. Neither library changes
# a colour because of it. But to read a colour file as a grey image (IMREAD_GRAYSCALE, channels=1),
# both leave the conversion to libpng. With such a chunk, libpng weighs the colours in linear light;
# without one, it weighs the numbers as they are. So the same pixels become two grey images, by what
# wrote the file: red is 76 or 147. Pillow writes no such chunk, and drops it from a file that it
# opens and saves. OpenCV's documentation says that a decoder's own conversion may differ from
# cvtColor's; without the chunk it does so by 1. torchvision 0.29.1 (ImageReadMode.GRAY) has the
# same numbers as these two.
#
# Red, green, blue and a violet, as grey. Seen:
#   OpenCV, IMREAD_GRAYSCALE: 76 149 29 98, with sRGB 147 200 95 111
#   OpenCV, IMREAD_COLOR and cvtColor: 76 150 29 99, with sRGB 76 150 29 99
#   TensorFlow, 1 channel: 76 149 29 98, with sRGB 147 200 95 111
#   TensorFlow, 3 channels and rgb_to_grayscale: 76 149 29 98, with sRGB 76 149 29 98
#   Pillow, convert("L"): 76 150 29 99, with sRGB 76 150 29 99
# Expected: the chunk changes nothing, or the colours, too. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    opencv-python-headless==5.0.0.93 tensorflow-cpu==2.21.0 pillow==13.0.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>"$folder/log" <<'PYTHON' || { cat "$folder/log"; exit 1; }
import io
import struct
import zlib

import cv2
import numpy as np
import tensorflow as tf
from PIL import Image

COLOURS = np.array([[(255, 0, 0), (0, 255, 0), (0, 0, 255), (128, 64, 200)]], np.uint8)
HEAD = 33  # bytes of the signature and IHDR


def png(*chunks):
    stream = io.BytesIO()
    Image.fromarray(COLOURS).save(stream, "PNG")
    file = stream.getvalue()
    assert b"sRGB" not in file and b"gAMA" not in file
    for name, data in chunks:
        checksum = struct.pack(">I", zlib.crc32(name + data))
        file = file[:HEAD] + struct.pack(">I", len(data)) + name + data + checksum + file[HEAD:]
    return file


def opencv(file, flag):
    return cv2.imdecode(np.frombuffer(file, np.uint8), flag)


def pillow_again(file):
    stream = io.BytesIO()
    Image.open(io.BytesIO(file)).save(stream, "PNG")
    return stream.getvalue()


READERS = {
    "OpenCV, IMREAD_GRAYSCALE": lambda file: opencv(file, cv2.IMREAD_GRAYSCALE),
    "OpenCV, IMREAD_COLOR and cvtColor": lambda file: cv2.cvtColor(
        opencv(file, cv2.IMREAD_COLOR), cv2.COLOR_BGR2GRAY
    ),
    "TensorFlow, 1 channel": lambda file: tf.io.decode_png(file, channels=1).numpy(),
    "TensorFlow, 3 channels and rgb_to_grayscale": lambda file: tf.image.rgb_to_grayscale(
        tf.io.decode_png(file, channels=3)
    ).numpy(),
    'Pillow, convert("L")': lambda file: np.asarray(Image.open(io.BytesIO(file)).convert("L")),
}
plain = png()
marked = png((b"sRGB", b"\0"))
gamma = png((b"gAMA", struct.pack(">I", 45455)))
assert pillow_again(marked) == plain
assert np.array_equal(opencv(marked, cv2.IMREAD_COLOR)[..., ::-1], COLOURS)
assert np.array_equal(tf.io.decode_png(marked, channels=3), COLOURS)
for name, read in READERS.items():
    before, after, third = (read(file).ravel() for file in (plain, marked, gamma))
    print(f"{name}:", *before, end=", with sRGB ")
    print(*after)
    assert np.array_equal(after, third), "sRGB and gAMA differ"
    changed = np.abs(after.astype(int) - before).max() > 60
    assert changed == (name in ("OpenCV, IMREAD_GRAYSCALE", "TensorFlow, 1 channel"))
    assert changed or np.array_equal(before, after)
PYTHON
