#!/usr/bin/env bash
# OpenCV 5.0.0 (opencv-python-headless 5.0.0.93): IMREAD_REDUCED_COLOR_8 is another filter for a JPEG
# than for every other format, and gives another size.
#
# libjpeg-turbo reduces a JPEG from all 64 pixels of each block, and rounds its size up. Any other
# file is decoded whole and resized bilinearly, from 4 of the 64 pixels, and its size is rounded
# down. The documentation only says that the size is reduced to 1/8. So what is tuned and tested
# with JPEGs gets aliased images from its users' PNG, WebP, TIFF and BMP files: noise that a JPEG
# averages away stays whole, and fine stripes become a flat area of any brightness.
#
# Black, with every eighth column white, 96×96 pixels: 32 on average. The JPEG has quality 100.
# Their means, and the sizes of a picture of 95×95 pixels, once reduced. Seen here:
#   white columns 0, 8, ...: .jpg 32, .png 0, .webp 0, .tiff 0, .bmp 0
#   white columns 3, 11, ...: .jpg 32, .png 128, .webp 128, .tiff 128, .bmp 128
#   95×95 pixels: .jpg 12×12, .png 11×11, .webp 11×11, .tiff 11×11, .bmp 11×11
# Expected: 32 and one size. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    opencv-python-headless==5.0.0.93 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import cv2
import numpy as np

OPTIONS = {
    ".jpg": [cv2.IMWRITE_JPEG_QUALITY, 100],
    ".png": [],
    ".webp": [cv2.IMWRITE_WEBP_QUALITY, 101],  # lossless
    ".tiff": [],
    ".bmp": [],
}


def reduced(picture):
    for suffix, options in OPTIONS.items():
        done, file = cv2.imencode(suffix, picture, options)
        assert done
        whole = cv2.imdecode(file, cv2.IMREAD_COLOR)
        assert np.abs(whole.astype(int) - picture).max() < 8, "the file is another picture"
        yield suffix, cv2.imdecode(file, cv2.IMREAD_REDUCED_COLOR_8)


for first, aliased in ((0, 0), (3, 128)):
    picture = np.zeros((96, 96, 3), np.uint8)
    picture[:, first::8] = 255
    means = {suffix: round(small.mean()) for suffix, small in reduced(picture)}
    found = ", ".join(f"{suffix} {mean}" for suffix, mean in means.items())
    print(f"white columns {first}, {first + 8}, ...: {found}")
    for suffix, mean in means.items():
        assert abs(mean - (32 if suffix == ".jpg" else aliased)) < 3, "the filters have changed"
sizes = {suffix: small.shape[0] for suffix, small in reduced(np.zeros((95, 95, 3), np.uint8))}
print("95×95 pixels:", ", ".join(f"{suffix} {size}×{size}" for suffix, size in sizes.items()))
assert all(size == (12 if suffix == ".jpg" else 11) for suffix, size in sizes.items())
PYTHON
