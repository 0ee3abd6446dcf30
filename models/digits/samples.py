"""Writes the sample images. Run it as `python -m models.digits.samples`.

Ten images show the digits 0 to 9 in ten styles. Their handwriting is not in the training set.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from models.digits.dataset import enlarged_digit, handwriting
from models.digits.drawing import Colours, Placement, on_paper

SAMPLES = Path(__file__).with_name("samples")
_SEED = 2


@dataclass(frozen=True, slots=True)
class _Manner:
    name: str  # the part of the file name after the digit
    size: tuple[int, int]
    colours: Colours
    height: float  # of the digit, as a fraction of the image's


_MANNERS = (
    _Manner("white_on_black.png", (128, 128), Colours((0, 0, 0), (255, 255, 255), 0), 0.9),
    _Manner("pencil_on_paper.jpg", (640, 480), Colours((236, 232, 222), (70, 70, 76), 3), 0.6),
    _Manner("chalk_on_slate.jpg", (640, 480), Colours((44, 58, 52), (222, 224, 214), 4), 0.5),
    _Manner("ink_on_paper.jpg", (480, 640), Colours((250, 248, 240), (24, 40, 120), 2), 0.7),
    _Manner("black_on_white.png", (256, 256), Colours((255, 255, 255), (0, 0, 0), 0), 0.75),
    _Manner("marker_on_card.webp", (640, 480), Colours((226, 190, 120), (150, 20, 24), 2), 0.8),
    _Manner("yellow_on_blue.webp", (500, 375), Colours((20, 50, 130), (250, 220, 60), 2), 0.55),
    _Manner("faint_on_grey.jpg", (320, 240), Colours((150, 150, 150), (95, 95, 95), 2), 0.65),
    _Manner("small_in_the_middle.jpg", (800, 600), Colours((240, 240, 236), (40, 40, 44), 2), 0.36),
    _Manner("light_on_wood.jpg", (640, 480), Colours((92, 60, 36), (240, 226, 200), 4), 0.6),
)


def main() -> None:
    """Write all ten sample images."""
    rng = np.random.default_rng(_SEED)
    _, held_out = handwriting()
    for digit, manner in enumerate(_MANNERS):
        image = held_out.images[np.flatnonzero(held_out.labels == digit)[0]]
        placement = Placement(manner.height, 1.0, rng.normal(0, 4), 0.0, 0.5, 0.5)
        coverage = enlarged_digit(image, placement, min(manner.size), rng)
        image = on_paper(coverage, manner.size, manner.colours, rng)
        if manner.colours.noise == 0:
            image = image.convert("L")
        _save(image, SAMPLES / f"{digit}_{manner.name}")


def _save(image: Image.Image, path: Path) -> None:
    image.save(path, quality=80)  # PNG is lossless and ignores the quality
    print(f"wrote {path}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
