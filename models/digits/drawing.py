"""Draws digits with a pen or a typeface. The results are coverage maps for training and for
samples.

A coverage map is a float32 array with 0 for paper and 1 for ink. The pen follows splines through
points that are moved at random, so that no two digits are alike.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Coverage = NDArray[np.float32]

# The handwritten form of each digit: pen strokes, separated by a bar, each a curve through points
# x,y in percent of the digit's box, y downwards. A point given twice is a corner.
_HANDS: tuple[tuple[str, ...], ...] = (
    (
        "50,0 10,20 0,55 20,93 50,100 85,88 100,50 85,10 50,0",
        "60,2 20,12 0,50 15,90 50,100 88,85 100,45 80,5 45,3",
    ),
    (
        "50,0 50,50 50,100",
        "20,25 60,0 60,0 60,50 60,100",
        "20,22 50,0 50,0 50,100 | 15,100 85,100",
    ),
    (
        "5,25 25,4 60,0 92,20 80,50 40,78 0,100 0,100 100,100",
        "5,20 45,0 90,15 75,55 25,95 5,88 30,80 60,95 100,92",
    ),
    (
        "5,10 50,0 90,20 75,42 40,48 40,48 85,58 95,80 55,100 0,90",
        "5,0 90,0 90,0 40,40 40,40 90,55 90,85 50,100 0,90",
    ),
    (
        "70,0 0,68 0,68 100,68 | 70,0 70,100",
        "15,0 5,50 5,50 95,50 | 80,5 75,100",
        "25,2 5,55 5,55 90,52 | 70,25 60,100",
    ),
    (
        "90,0 15,0 15,0 8,45 8,45 55,38 95,65 75,95 35,100 0,90",
        "20,2 12,42 12,42 60,42 92,70 60,98 0,92 | 20,2 95,0",
    ),
    (
        "80,0 30,25 2,65 20,95 60,100 95,78 75,52 35,52 5,72",
        "50,0 15,40 10,80 45,100 85,85 75,58 40,58 12,78",
    ),
    (
        "0,2 100,0 100,0 60,45 35,100",
        "0,2 95,0 95,0 55,50 40,100 | 20,50 85,48",
        "5,15 5,0 5,0 95,2 95,2 50,50 35,100",
    ),
    (
        "85,10 50,0 12,20 40,45 85,68 80,93 45,100 8,85 20,60 60,42 90,20 80,5",
        "50,0 12,10 15,38 50,47 85,38 88,10 50,0 | 50,47 5,60 5,90 50,100 95,90 95,60 50,47",
    ),
    (
        "90,25 60,0 15,10 8,40 45,50 88,30 92,10 90,50 75,100",
        "85,30 55,2 10,18 20,48 65,45 85,15 85,60 60,95 15,95",
    ),
)


@dataclass(frozen=True, slots=True)
class Placement:
    """The position, size and tilt of a digit in its image. Both axes run from 0 to 1, to the right
    and down."""

    height: float  # of the digit, as a fraction of the image's
    aspect: float  # width / height of the digit
    angle: float  # degrees, counter-clockwise
    slant: float  # tangent of the lean to the right
    x: float  # of the digit's centre
    y: float

    @classmethod
    def random(cls, rng: np.random.Generator) -> Self:
        """Return a random placement near the centre, slightly tilted.

        The digit's height is between 0.33 and 0.92 of the image's height.
        """
        height = rng.uniform(0.33, 0.92)
        aspect = rng.uniform(0.45, 0.85)
        room = min(0.5 - height / 2, 0.18)
        return cls(
            height=height,
            aspect=aspect,
            angle=rng.normal(0, 6),
            slant=rng.normal(0.05, 0.12),
            x=0.5 + rng.uniform(-room, room),
            y=0.5 + rng.uniform(-room, room),
        )

    def matrix(self) -> NDArray[np.float64]:
        """Return the 2×3 matrix that maps points of the digit's bounding box (0 to 1) to points of
        the image (0 to 1)."""
        cos, sin = np.cos(np.radians(self.angle)), np.sin(np.radians(self.angle))
        turn = np.array([[cos, sin], [-sin, cos]])
        shape = np.array([[self.aspect, -self.slant], [0, 1]]) * self.height
        linear = turn @ shape
        centre = np.array([self.x, self.y])
        return np.column_stack([linear, centre - linear @ [0.5, 0.5]])


@dataclass(frozen=True, slots=True)
class Colours:
    """Holds the RGB colours of paper and ink (0 to 255), and the standard deviation of the image's
    noise."""

    paper: tuple[float, float, float]
    ink: tuple[float, float, float]
    noise: float

    @classmethod
    def random(cls, rng: np.random.Generator) -> Self:
        """Return two random colours that differ in brightness by at least 70 of 255, and a random
        noise."""
        luma = np.array([0.299, 0.587, 0.114])
        while True:
            paper, ink = rng.uniform(0, 255, (2, 3))
            if abs((paper - ink) @ luma) >= 70:
                return cls(tuple(paper.tolist()), tuple(ink.tolist()), rng.uniform(0, 10))


def pen_digit(digit: int, placement: Placement, side: int, rng: np.random.Generator) -> Coverage:
    """Return a coverage map (side × side) of a digit drawn with a round pen."""
    hands = _HANDS[digit]
    strokes = hands[rng.integers(len(hands))].split(" | ")
    width = max(2, round(side * placement.height * rng.uniform(0.05, 0.2)))
    matrix = placement.matrix()
    image = Image.new("L", (side, side))
    draw = ImageDraw.Draw(image)
    wobble = rng.uniform(0, 0.05)
    for stroke in strokes:
        moved = _move(_points(stroke), wobble, rng)
        path = (_spline(moved) @ matrix[:, :2].T + matrix[:, 2]) * side
        draw.line([(x, y) for x, y in path], fill=255, width=width, joint="curve")
        for x, y in (path[0], path[-1]):
            radius = width / 2
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    return _coverage(image)


def printed_digit(
    digit: int, placement: Placement, side: int, rng: np.random.Generator
) -> Coverage:
    """Return a coverage map (side × side) of a digit in Pillow's typeface, with a random weight."""
    font = ImageFont.load_default(side)
    stroke = int(rng.integers(0, side // 16 + 1))
    left, top, right, bottom = font.getbbox(str(digit), stroke_width=stroke)
    glyph = Image.new("L", (round(right - left), round(bottom - top)))
    ImageDraw.Draw(glyph).text((-left, -top), str(digit), fill=255, font=font, stroke_width=stroke)
    # A typeface has its own proportions: a 1 is narrow.
    return place(glyph, placement, side, aspect=glyph.width / glyph.height)


def place(glyph: Image.Image, placement: Placement, side: int, aspect: float) -> Coverage:
    """Return a coverage map (side × side) of a digit, which is given as a grey image.

    `aspect` is the width of the digit divided by its height.
    """
    matrix = np.vstack([replace(placement, aspect=aspect).matrix(), [0, 0, 1]])
    # Pillow needs the inverse matrix, which maps each pixel of the result to a point of the glyph.
    back = np.diag([glyph.width, glyph.height, 1]) @ np.linalg.inv(
        np.diag([side, side, 1]) @ matrix
    )
    placed = glyph.transform(
        (side, side),
        Image.Transform.AFFINE,
        tuple(back[:2].ravel()),
        Image.Resampling.BICUBIC,
    )
    return _coverage(placed)


def on_paper(
    coverage: Coverage, size: tuple[int, int], colours: Colours, rng: np.random.Generator
) -> Image.Image:
    """Render a square coverage map as an RGB image of `size` (width, height), with the map at the
    centre.

    The light is uneven, and the image has the noise of a camera. Both sides of `size` must be at
    least as long as the sides of the map.
    """
    width, height = size
    side = len(coverage)
    left, top = (width - side) // 2, (height - side) // 2
    ink = np.zeros((height, width, 1))
    ink[top : top + side, left : left + side, 0] = coverage
    paper_colour, ink_colour = np.array(colours.paper), np.array(colours.ink)
    light = 1 + rng.uniform(-0.15, 0.15) * np.linspace(-1, 1, width)[None, :, None]
    noise = rng.normal(0, colours.noise, (height, width, 3))
    pixels = (paper_colour + (ink_colour - paper_colour) * ink) * light + noise
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def _coverage(image: Image.Image) -> Coverage:
    return np.asarray(image).astype(np.float32) / np.float32(255)


def _points(stroke: str) -> NDArray[np.float64]:
    return np.array([point.split(",") for point in stroke.split()], np.float64) / 100


def _move(
    points: NDArray[np.float64], wobble: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    offsets = rng.normal(0, wobble, points.shape)
    same = np.flatnonzero((points[1:] == points[:-1]).all(axis=1)) + 1
    offsets[same] = offsets[same - 1]  # a corner stays a corner
    moved: NDArray[np.float64] = points + offsets
    return moved


def _spline(points: NDArray[np.float64], steps: int = 8) -> NDArray[np.float64]:
    """Return points on a Catmull-Rom spline through `points`, with `steps` points per segment."""
    p = np.vstack([points[:1], points, points[-1:]])
    t = np.linspace(0, 1, steps, endpoint=False)[:, None]
    pieces = [
        0.5
        * (
            2 * b
            + (c - a) * t
            + (2 * a - 5 * b + 4 * c - d) * t**2
            + (3 * b - a - 3 * c + d) * t**3
        )
        for a, b, c, d in zip(p, p[1:], p[2:], p[3:], strict=False)
    ]
    return np.vstack([*pieces, points[-1:]])
