"""Names the filters that resize images."""

from enum import Enum, unique


@unique
class Interpolation(Enum):
    """Names the filter of a resize. The names are Pillow's. All filters except `nearest` are
    antialiased."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"
    BOX = "box"
    HAMMING = "hamming"
