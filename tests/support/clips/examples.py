"""Writes the page's examples for models of clips (python -m tests.support.clips.examples)."""

from pathlib import Path

import numpy as np
from PIL import Image

from models.digits.dataset import handwriting
from service.hosting.presets import PHOTOGRAPHS
from tests.support import ROOT
from tests.support.clips.moving import moving

FOLDER = ROOT / "service/api/page/clips"

_TIMES_AS_LARGE = 4
_MS, _ROUNDS = 120, 3  # it moves for a few seconds, and then no longer


def _save(path: Path, frames: list[Image.Image]) -> None:
    first, *others = frames
    first.save(path, save_all=True, append_images=others, duration=_MS, loop=_ROUNDS, quality=70)


def main() -> None:
    """Write two moving digits, and a camera pan over a photograph."""
    digits, _ = handwriting()
    for seed, motion in ((3, "growing"), (5, "right")):
        clip = moving(digits.images[seed], motion, np.random.default_rng(seed))
        images = [Image.fromarray(frame) for frame in clip]
        size = [side * _TIMES_AS_LARGE for side in images[0].size]
        frames = [image.resize((size[0], size[1]), Image.Resampling.BICUBIC) for image in images]
        _save(FOLDER / f"digit_{motion}.gif", frames)
    (rocket,) = (path for path in PHOTOGRAPHS if path.stem == "rocket")
    with Image.open(rocket) as opened:
        image = opened.convert("RGB")
    side = min(image.size) * 2 // 3
    ways = [(image.width - side) * step / 15 for step in range(16)]
    drops = [(image.height - side) * step / 15 for step in range(16)]
    boxes = [(x, y, x + side, y + side) for x, y in zip(ways, drops, strict=True)]
    _save(
        FOLDER / "rocket_pan.webp",
        [image.resize((160, 160), Image.Resampling.BICUBIC, box=box) for box in boxes],
    )


if __name__ == "__main__":
    main()
