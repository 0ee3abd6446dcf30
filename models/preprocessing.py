"""What a model expects of its pixels and what its scores mean: `model.toml`, presets, flags."""

from dataclasses import dataclass
from enum import Enum, unique


@unique
class ChannelOrder(Enum):
    """The order of the channels that the model reads."""

    RGB = "rgb"
    BGR = "bgr"
    GREY = "grey"  # one channel, ITU-R 601 luma


@unique
class Layout(Enum):
    """The order of the axes of the model's input, batch first."""

    NCHW = "nchw"
    NHWC = "nhwc"


@unique
class Fit(Enum):
    """How a picture is brought to height × width."""

    CROP = "crop"  # shorter side to `resize`, then the centre height × width
    STRETCH = "stretch"  # straight to height × width, the aspect ratio lost


@unique
class OutputKind(Enum):
    """What the model's scores are."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Pixels in: x = (pixel · scale - mean[c]) / std[c], pixel in 0..255, one mean a channel.

    `mean` and `std` follow `channels` (so BGR models give BGR means) and have 1 entry for GREY,
    3 otherwise.
    """

    height: int
    width: int
    fit: Fit
    resize: int  # length of the shorter side before the crop; unused by STRETCH
    channels: ChannelOrder
    layout: Layout
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    output: OutputKind
    labels: tuple[str, ...]  # empty: classes are named by their index
