"""Describes the pixels that a model expects, and what its scores mean.

A clip is a sequence of frames: its pixels are D×H×W×C, those of an image H×W×C.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, unique
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.image.decoded import MIDDLE_BYTES, PLACE_BYTES
from kernels.image.place import Kind, array_bytes
from kernels.problems.interpolation import Interpolation
from models.errors import PreprocessingError
from models.scores import OutputKind, classes_of


@unique
class ChannelOrder(Enum):
    """Names the order of the channels that the model reads."""

    RGB = "rgb"
    BGR = "bgr"
    GREY = "grey"  # one channel, ITU-R 601 luma


@unique
class Layout(Enum):
    """Names the order of the input's axes after the batch; a clip's D comes before H."""

    NCHW = "nchw"
    NHWC = "nhwc"


@unique
class CropMode(Enum):
    """Names how an image is made height × width, by resizing, cropping or padding."""

    CROP = "crop"  # the shorter side becomes `resize`
    SQUASH = "squash"  # both sides become `resize`, so the aspect ratio changes
    PAD = "pad"  # the longer side becomes `resize`; `paper` is around the image


@unique
class Rounding(Enum):
    """Names how a part of a pixel is rounded; halves go to the even number."""

    NEAREST = "nearest"
    DOWN = "down"


@unique
class Sampling(Enum):
    """Names which frames of a longer clip a model gets; frames of a shorter clip are repeated."""

    UNIFORM = "uniform"  # the middles of as many equal parts
    FIRST = "first"
    STRIDE = "stride"  # the first, and every so many further


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Describes the input x = (pixel · scale - mean[c]) / std[c] for channel c, with pixel in
    0..255.

    `mean` and `std` follow `channels` (so BGR models give BGR means) and have 1 entry for GREY, 3
    otherwise.
    """

    height: int
    width: int
    crop_mode: CropMode
    resize: int  # the side that `crop_mode` names, before the crop; of a square one, of the longer
    interpolation: Interpolation
    channels: ChannelOrder
    layout: Layout
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    output: OutputKind
    # Empty: classes are named by their index. There may be thousands to hash.
    labels: tuple[str, ...] = field(hash=False)
    frames: int | None = None  # of a clip; None: the model takes images
    exact: bool = False  # pixels to the bit as in training: slower, and no EXIF orientation
    guess: str = ""  # the preset, where nothing chose it
    sampling: Sampling = Sampling.UNIFORM  # of a clip
    stride: int = 1  # of STRIDE
    as_bytes: bool = False  # the file's input is uint8: pixels as they are
    longer_side: Rounding = Rounding.DOWN  # of an image that CROP resizes
    crop_offset: Rounding = Rounding.NEAREST  # where not as much is cut off on both sides
    pad: tuple[int, ...] = ()  # the colour of PAD as RGB, or one grey; empty: that of the mean

    def chosen(self, frames: int) -> list[int]:
        """Return the indices of the frames that the model gets of a clip with `frames` frames, in
        order."""
        wanted = range(self.frames or 1)
        if self.sampling is Sampling.UNIFORM:
            return [(2 * index + 1) * frames // (2 * len(wanted)) for index in wanted]
        step = self.stride if self.sampling is Sampling.STRIDE else 1
        return [min(index * step, frames - 1) for index in wanted]

    @property
    def resized(self) -> tuple[int, int]:
        """Return the width and height to which SQUASH resizes an image and into which PAD
        fits it."""
        longer = max(self.height, self.width)
        return self.width * self.resize // longer, self.height * self.resize // longer

    @property
    def paper(self) -> tuple[int, ...]:
        """Return the pixel that PAD puts around an image, in the model's order of channels: `pad`,
        or else the one whose normalised value is about 0."""
        if self.pad:
            return self.pad[::-1] if self.channels is ChannelOrder.BGR else self.pad
        return tuple(min(255, max(0, round(mean / self.scale))) for mean in self.mean)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Return the shape in which engines take one image, H×W×C, or D×H×W×C for a clip."""
        depth = () if self.frames is None else (self.frames,)
        return (*depth, self.height, self.width, len(self.mean))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape in which the model takes one image, with channels first or last by
        `layout`."""
        *spatial, channels = self.image_shape
        return self.image_shape if self.layout is Layout.NHWC else (channels, *spatial)

    @property
    def resizable(self) -> bool:
        """Return whether a device can resize decoded images for this model, which it cannot for
        clips."""
        return self.frames is None and prod(self.image_shape) <= MIDDLE_BYTES

    def batch_kinds(self, takes: Kind) -> tuple[Kind, ...]:
        """Return the kinds of batches for each of which a device has a plan, if it takes images up
        to `takes`.

        Batches of pixels alone need no entries.
        """
        if takes <= Kind.TENSOR or not self.resizable:
            return Kind.PIXELS, Kind.TENSOR
        files = (Kind.JPEG,) if takes is Kind.JPEG else ()
        return Kind.PIXELS, Kind.DECODED, *files

    def place_bytes(self, kind: Kind) -> int:
        """Return the bytes that an image takes in a batch of this kind."""
        if kind is Kind.PIXELS:
            return prod(self.image_shape)
        tensor = array_bytes(4 * prod(self.input_shape))
        return max(tensor, PLACE_BYTES) if kind >= Kind.DECODED else tensor

    @property
    def forms(self) -> Mapping["np.dtype[Any]", tuple[int, ...]]:
        """Return one image's shape by type, as uint8 pixels and as a normalised float32 tensor."""
        return {np.dtype(np.uint8): self.image_shape, np.dtype(np.float32): self.input_shape}


@dataclass(frozen=True, slots=True)
class Preset:
    """Describes the preprocessing of models from one source; `resize` scales with the model's
    size."""

    size: int
    resize: int
    crop_mode: CropMode
    channels: ChannelOrder
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Interpolation = Interpolation.BILINEAR

    def resized(self, height: int, width: int) -> int:
        """Return the value of `resize` for a model of this height and width."""
        return round(max(height, width) * self.resize / self.size)

    def at(self, height: int, width: int) -> Preprocessing:
        """Return the preprocessing for a model of this size in N×C×H×W without known labels."""
        return Preprocessing(
            height=height,
            width=width,
            crop_mode=self.crop_mode,
            resize=self.resized(height, width),
            interpolation=self.interpolation,
            channels=self.channels,
            layout=Layout.NCHW,
            scale=self.scale,
            mean=self.mean,
            std=self.std,
            output=OutputKind.LOGITS,
            labels=(),
        )


# torchvision and most of what was trained in PyTorch
_IMAGENET = Preset(
    size=224,
    resize=256,
    crop_mode=CropMode.CROP,
    channels=ChannelOrder.RGB,
    scale=1 / 255,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)
_UNIT = (1.0, 1.0, 1.0)
_NONE = (0.0, 0.0, 0.0)
_BGR = replace(_IMAGENET, channels=ChannelOrder.BGR)
_GREY = replace(_IMAGENET, size=32, resize=32, channels=ChannelOrder.GREY, mean=(0.0,), std=(1.0,))

PRESETS: Mapping[str, Preset] = {
    "imagenet": _IMAGENET,
    # Caffe's model zoo, and what was converted from it
    "caffe": replace(
        _IMAGENET,
        channels=ChannelOrder.BGR,
        scale=1.0,
        mean=(103.939, 116.779, 123.68),
        std=_UNIT,
    ),
    # -1..1: Keras' MobileNet, Inception, Xception and NASNet; TensorFlow's; timm's Inception
    "inception": replace(_IMAGENET, scale=1 / 127.5, mean=_UNIT, std=_UNIT),
    # 0..255, for networks that normalise inside: Keras' EfficientNet, ConvNeXt and MobileNetV3
    "raw": replace(_IMAGENET, scale=1.0, mean=_NONE, std=_UNIT),
    # 0..1: Ultralytics, Keras' Rescaling(1/255), PyTorch's ToTensor alone, Lobe
    "unit": replace(_IMAGENET, mean=_NONE, std=_UNIT),
    # 0..255 as OpenCV reads them: Custom Vision, and what was trained on cv2.imread
    "bgr": replace(_BGR, scale=1.0, mean=_NONE, std=_UNIT),
    "bgr-unit": replace(_BGR, mean=_NONE, std=_UNIT),
    "bgr-inception": replace(_BGR, scale=1 / 127.5, mean=_UNIT, std=_UNIT),
    # imagenet's numbers in the order of BGR: what OpenCV read, normalised as PyTorch does
    "bgr-imagenet": replace(_BGR, mean=(0.406, 0.456, 0.485), std=(0.225, 0.224, 0.229)),
    # caffe's numbers in the order of RGB
    "rgb-caffe": replace(_IMAGENET, scale=1.0, mean=(123.68, 116.779, 103.939), std=_UNIT),
    # CLIP's encoders, and what was fine-tuned from them
    "clip": replace(
        _IMAGENET,
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
    ),
    # the built-in model; plain grey of 0..1 for any other model of one channel
    "digits": _GREY,
    "grey-inception": replace(_GREY, scale=1 / 127.5, mean=(1.0,)),
    "grey-raw": replace(_GREY, scale=1.0),
    # torchvision's examples of MNIST
    "mnist": replace(_GREY, mean=(0.1307,), std=(0.3081,)),
}

OF_OWN_NORMALISATION: Mapping[float, tuple[str, str]] = {
    255: ("raw", "bgr"),
    1: ("unit", "bgr-unit"),
}
"""The presets of a network that normalises pixels itself, by the largest value of these: one for
RGB and one for BGR, because its operations may not tell the order of channels."""

GREY_OF_OWN: Mapping[float, str] = {255: "grey-raw", 1: "digits"}
"""The same for a network of one channel."""


def each_preset(preprocessing: Preprocessing) -> Mapping[str, Preprocessing]:
    """Return this preprocessing as each preset would have it, by the presets' names.

    Only presets with as many channels count, and none if the model takes pixels as they are.
    """
    if preprocessing.as_bytes:
        return {}
    return {
        name: replace(
            preprocessing,
            crop_mode=preset.crop_mode,
            resize=preset.resized(preprocessing.height, preprocessing.width),
            interpolation=preset.interpolation,
            channels=preset.channels,
            scale=preset.scale,
            mean=preset.mean,
            std=preset.std,
            guess="",
        )
        for name, preset in PRESETS.items()
        if len(preset.mean) == len(preprocessing.mean)
    }


def checked_labels(labels: tuple[str, ...], scores: int, source: str = "") -> tuple[str, ...]:
    """Return the labels of each class of a model with so many scores, or none at all.

    The one label of a single score is that of yes. Raises PreprocessingError where there are too
    many or too few.
    """
    count, classes = len(labels), classes_of(scores)
    if scores == count == 1:
        return f"not {labels[0]}", labels[0]
    if count not in (0, classes):
        where = f" in {source}" if source else ""
        kinds = "classes" if scores > 1 else "classes, no and yes"
        raise PreprocessingError(
            f"there are {count} labels{where}, but the model has {classes} {kinds}; "
            "the label file must have one line per class, in the order of the model's output"
        )
    return labels


def normalisation(
    preprocessing: Preprocessing,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return multiplier and offset, by channel, such that x = pixel · multiplier + offset."""
    mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
    return (preprocessing.scale / std).astype(np.float32), (-mean / std).astype(np.float32)


def normalised(images: NDArray[np.uint8], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """Return float32 of pixels N×H×W×C, normalised, in the order of axes of the model's layout."""
    multiplier, offset = normalisation(preprocessing)
    tensors = images * multiplier + offset
    if preprocessing.layout is Layout.NCHW:
        tensors = np.moveaxis(tensors, -1, 1)
    return np.ascontiguousarray(tensors, np.float32)
