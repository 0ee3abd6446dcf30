"""Makes the training and test data of the digits model.

The handwriting is scikit-learn's digits dataset (8×8 pixels, 16 levels; the test set of the UCI
"Optical Recognition of Handwritten Digits"). That dataset is small, and its digits are always light
on dark. Most training images are therefore synthetic. They contain enlarged and moved handwriting,
or digits that `drawing` draws, with paper and ink of any brightness.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from models.digits.drawing import Coverage, Placement, pen_digit, place, printed_digit
from models.digits.network import SIDE

_CANVAS = 96  # drawn three times as large, for smooth edges
HELD_OUT = 360

_SPLIT_SEED = 0


@dataclass(frozen=True, slots=True)
class Handwriting:
    """Holds n images of handwritten digits (8×8 pixels from 0 to 255, light on dark), and the
    digits 0 to 9 in them."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


def handwriting() -> tuple[Handwriting, Handwriting]:
    """Return 1437 training images and 360 test images of handwritten digits.

    Every call returns the same images.
    """
    # Importing scikit-learn takes two seconds, and drawing digits does not need it.
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    data = load_digits()
    images = np.rint(data.images * (255 / 16)).astype(np.uint8)
    learnt, held_out, learnt_labels, held_out_labels = train_test_split(
        images, data.target, test_size=HELD_OUT, random_state=_SPLIT_SEED, stratify=data.target
    )
    return Handwriting(learnt, learnt_labels), Handwriting(held_out, held_out_labels)


def enlarge(image: NDArray[np.uint8], threshold: float, sharpness: float) -> Image.Image:
    """Crop an 8×8 digit to its ink, enlarge it, and return it as a grey image, light on dark.

    The edges of its strokes are 1 / sharpness pixels wide. A lower threshold (0 to 1) makes the
    strokes thicker.
    """
    smooth = Image.fromarray(np.pad(image, 1)).resize((160, 160), Image.Resampling.BICUBIC)
    ink = np.clip((np.asarray(smooth) / 255 - threshold) * sharpness + 0.5, 0, 1)
    rows, columns = (np.flatnonzero(ink.max(axis=axis) > 0.5) for axis in (1, 0))
    cut = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return Image.fromarray(np.rint(cut * 255).astype(np.uint8))


def enlarged_digit(
    image: NDArray[np.uint8], placement: Placement, side: int, rng: np.random.Generator
) -> Coverage:
    """Return a coverage map (side × side) of an enlarged handwritten digit."""
    glyph = enlarge(image, rng.uniform(0.3, 0.6), rng.uniform(2, 8))
    return place(glyph, placement, side, aspect=glyph.width / glyph.height)


@dataclass(frozen=True, slots=True)
class Amounts:
    """The number of training images of each kind."""

    as_is: int = 6  # per handwritten digit
    enlarged: int = 12  # per handwritten digit
    pen: int = 1600  # per digit from 0 to 9
    printed: int = 400  # per digit from 0 to 9


def coverage_maps(
    learnt: Handwriting, amounts: Amounts, rng: np.random.Generator
) -> tuple[Coverage, NDArray[np.int64]]:
    """Return n coverage maps of SIDE × SIDE pixels (0 is paper, 1 is ink), and the digits in
    them."""
    maps: list[Coverage] = []
    labels: list[int] = []
    for image, label in zip(learnt.images, learnt.labels.tolist(), strict=True):
        for _ in range(amounts.as_is):
            maps.append(_as_is(image, rng))
        for _ in range(amounts.enlarged):
            maps.append(_small(enlarged_digit(image, Placement.random(rng), _CANVAS, rng)))
        labels += [label] * (amounts.as_is + amounts.enlarged)
    for digit in range(10):
        for draw, count in ((pen_digit, amounts.pen), (printed_digit, amounts.printed)):
            for _ in range(count):
                maps.append(_small(draw(digit, Placement.random(rng), _CANVAS, rng)))
            labels += [digit] * count
    return np.stack(maps), np.array(labels)


def _as_is(image: NDArray[np.uint8], rng: np.random.Generator) -> Coverage:
    """Enlarge an 8×8 digit to the whole image, in the same way as the server, and shift and distort
    it slightly."""
    placement = Placement(
        height=rng.uniform(0.85, 1.1),
        aspect=1.0,
        angle=rng.normal(0, 5),
        slant=rng.normal(0, 0.08),
        x=0.5 + rng.normal(0, 0.03),
        y=0.5 + rng.normal(0, 0.03),
    )
    glyph = Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return place(glyph, placement, SIDE, aspect=1.0)


def _small(coverage: Coverage) -> Coverage:
    image = Image.fromarray(np.rint(np.clip(coverage, 0, 1) * 255).astype(np.uint8))
    small = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(small).astype(np.float32) / np.float32(255)


def photograph(maps: Coverage, rng: np.random.Generator) -> NDArray[np.float32]:
    """Render n coverage maps as images of ink on unevenly lit paper, with blur and noise. Pixels
    are from 0 to 1."""
    n = len(maps)

    def per_image(low: float, high: float) -> NDArray[np.float32]:
        return rng.uniform(low, high, (n, 1, 1)).astype(np.float32)

    blur = per_image(0, 0.25)
    for axis in (1, 2):
        maps = (1 - 2 * blur) * maps + blur * (np.roll(maps, 1, axis) + np.roll(maps, -1, axis))
    # Paper and ink differ by at least a quarter; a third of all images are pure black and white.
    paper, contrast = per_image(0, 1), per_image(0.25, 1)
    ink = np.where(rng.random((n, 1, 1)) < 0.5, paper + contrast, paper - contrast)
    ink = np.where((ink < 0) | (ink > 1), paper + np.where(paper < 0.5, contrast, -contrast), ink)
    pure = rng.random((n, 1, 1)) < 1 / 3
    paper = np.where(pure, np.rint(paper), paper)
    ink = np.where(pure, 1 - paper, ink)
    images = paper + (ink - paper) * maps

    across = np.linspace(-0.5, 0.5, SIDE, dtype=np.float32)
    slope_x, slope_y = per_image(-0.2, 0.2), per_image(-0.2, 0.2)
    images = images + np.where(pure, 0, slope_x * across + slope_y * across[:, None])
    noise = rng.normal(0, 1, maps.shape).astype(np.float32) * per_image(0, 0.05)
    lit: NDArray[np.float32] = np.clip(images + noise, 0, 1).astype(np.float32)
    return lit
