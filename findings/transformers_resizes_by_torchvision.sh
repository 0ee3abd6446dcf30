#!/usr/bin/env bash
# transformers 5.24.0: an image processor resizes by torchvision where that is installed, by Pillow
# where it is not. The bilinear pixels of the two differ, and so do the answers of networks that
# multiply a bit, by what else is in the environment. Versions 4 resized by Pillow unless asked, and
# most weights were trained so. What ViTImageProcessorPil saves is loaded as the other one, too:
# the file names no backend.
#
# 480×640 to 384×384, bilinear, uint8, compared with Pillow 13.0.0's own resize. Seen:
#   ViTImageProcessorPil        largest difference 0, 0.0% differ
#   ViTImageProcessor           largest difference 1, 4.1% differ
#   saved by Pil, loaded: ViTImageProcessor   largest difference 1, 4.1% differ
# Nothing is said. Exits with an error if the pixels become equal. torch needs 6 GB of disk.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    transformers==5.24.0 torch==2.14.1 torchvision==0.29.1 pillow==13.0.0 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import sys

import numpy as np
from PIL import Image
from transformers import AutoImageProcessor, ViTImageProcessor, ViTImageProcessorPil

y, x = np.mgrid[:480, :640]
waves = 127 + 80 * np.sin(x / 9) + 40 * np.cos(y / 7)
noise = np.random.default_rng(0).normal(0, 20, (480, 640, 3))
pixels = np.stack([waves, waves[::-1], waves[:, ::-1]], -1) + noise
image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
expected = np.asarray(image.resize((384, 384), Image.Resampling.BILINEAR)).astype(int)
options = {"size": {"height": 384, "width": 384}, "do_rescale": False, "do_normalize": False}


def differ(name, processor):
    made = processor(image, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    off = np.abs(made.astype(int) - expected)
    print(name, type(processor).__name__, f"largest {off.max()}, {(off > 0).mean():.1%} differ")
    return bool(off.any())


by_pillow = ViTImageProcessorPil(**options)
by_pillow.save_pretrained(sys.argv[1])
assert not differ("by Pillow:", by_pillow), "Pillow's own differ now"
assert differ("by the plain name:", ViTImageProcessor(**options)), "they are equal now"
assert differ("saved and loaded:", AutoImageProcessor.from_pretrained(sys.argv[1])), "kept now"
PYTHON
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" "$folder/run.py" "$folder/saved"
