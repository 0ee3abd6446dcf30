"""Describes the pixels that a model expects, and the kind of its scores.

A clip is a sequence of frames. An image has pixels H×W×C, and a clip has pixels D×H×W×C.
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
    """Names the order of the channels in the model's input."""

    RGB = "rgb"
    BGR = "bgr"
    GREY = "grey"  # one channel, ITU-R 601 luma


@unique
class Layout(Enum):
    """Names the order of the input's axes after the batch axis. In a clip, D comes before H."""

    NCHW = "nchw"
    NHWC = "nhwc"


@unique
class CropMode(Enum):
    """Names the method that changes an image to height × width pixels: resizing, cropping or
    padding."""

    CROP = "crop"  # the shorter side becomes `resize`
    SQUASH = "squash"  # both sides become `resize`, so the aspect ratio changes
    PAD = "pad"  # the longer side becomes `resize`; `paper` fills the rest


@unique
class Rounding(Enum):
    """Names how fractions of a pixel are rounded. NEAREST rounds halves to even numbers."""

    NEAREST = "nearest"
    DOWN = "down"


@unique
class Sampling(Enum):
    """Names how frames are selected from a clip that is too long. If a clip is too short, frames
    are repeated."""

    UNIFORM = "uniform"  # the middles of `frames` equal parts of the clip
    FIRST = "first"
    STRIDE = "stride"  # the first frame, and then every `stride`-th frame


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Describes how pixels become the model's input. The input of channel c is x = (pixel · scale -
    mean[c]) / std[c], with pixels from 0 to 255.

    `mean` and `std` are in the order of `channels`, so that a BGR model has BGR means. They have
    one entry for GREY, and otherwise three.
    """

    height: int
    width: int
    crop_mode: CropMode
    resize: int  # CROP: the shorter side, before the crop; PAD, SQUASH: the longer side
    interpolation: Interpolation
    channels: ChannelOrder
    layout: Layout
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    output: OutputKind
    # If empty, the index of a class is its name. Not hashed, because there may be thousands.
    labels: tuple[str, ...] = field(hash=False)
    frames: int | None = None  # the frames of a clip; None: the model takes images
    exact: bool = False  # pixels bit-identical to training; slower, and without EXIF orientation
    guess: str = ""  # the preset that was guessed, or "" if one was chosen
    sampling: Sampling = Sampling.UNIFORM  # for clips
    stride: int = 1  # for STRIDE
    as_bytes: bool = False  # the file's input is uint8: pixels stay as they are
    longer_side: Rounding = Rounding.DOWN  # for an image that CROP resizes
    crop_offset: Rounding = Rounding.NEAREST  # if the crop cannot be exactly in the middle
    pad: tuple[int, ...] = ()  # PAD's colour, RGB or one grey value; empty: the mean's colour

    def chosen(self, frames: int) -> list[int]:
        """Return the indices of the frames that the model gets from a clip of `frames` frames, in
        order."""
        wanted = range(self.frames or 1)
        if self.sampling is Sampling.UNIFORM:
            return [(2 * index + 1) * frames // (2 * len(wanted)) for index in wanted]
        step = self.stride if self.sampling is Sampling.STRIDE else 1
        return [min(index * step, frames - 1) for index in wanted]

    @property
    def resized(self) -> tuple[int, int]:
        """Return the width and height to which an image is resized (SQUASH) or padded (PAD)."""
        longer = max(self.height, self.width)
        return self.width * self.resize // longer, self.height * self.resize // longer

    @property
    def paper(self) -> tuple[int, ...]:
        """Return the colour with which PAD fills the area around an image, in the model's channel
        order.

        The colour is `pad` if that is set, and otherwise the pixel whose normalised value is
        nearest to 0.
        """
        if self.pad:
            return self.pad[::-1] if self.channels is ChannelOrder.BGR else self.pad
        return tuple(min(255, max(0, round(mean / self.scale))) for mean in self.mean)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Return the shape of one image as engines take it: H×W×C, or D×H×W×C for a clip."""
        depth = () if self.frames is None else (self.frames,)
        return (*depth, self.height, self.width, len(self.mean))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of one image as the model takes it. The position of the channels depends
        on `layout`."""
        *spatial, channels = self.image_shape
        return self.image_shape if self.layout is Layout.NHWC else (channels, *spatial)

    @property
    def resizable(self) -> bool:
        """Return whether a device can resize decoded images for this model. It cannot resize clips,
        and the resized pixels may have at most MIDDLE_BYTES bytes."""
        return self.frames is None and prod(self.image_shape) <= MIDDLE_BYTES

    def batch_kinds(self, takes: Kind) -> tuple[Kind, ...]:
        """Return the kinds of images for which a device needs different plans.

        `takes` is the last kind, in the order of `Kind`, that the device accepts.
        """
        if takes <= Kind.TENSOR or not self.resizable:
            return Kind.PIXELS, Kind.TENSOR
        files = (Kind.JPEG,) if takes is Kind.JPEG else ()
        return Kind.PIXELS, Kind.DECODED, *files

    def place_bytes(self, kind: Kind) -> int:
        """Return the number of bytes that a batch of this kind reserves for each image."""
        if kind is Kind.PIXELS:
            return prod(self.image_shape)
        tensor = array_bytes(4 * prod(self.input_shape))
        return max(tensor, PLACE_BYTES) if kind >= Kind.DECODED else tensor

    @property
    def forms(self) -> Mapping["np.dtype[Any]", tuple[int, ...]]:
        """Return the allowed types of one image, each with its shape: uint8 pixels, or a float32
        tensor."""
        return {np.dtype(np.uint8): self.image_shape, np.dtype(np.float32): self.input_shape}


@dataclass(frozen=True, slots=True)
class Preset:
    """Describes the preprocessing of models from one source, such as Caffe's model zoo.

    `resize` is valid for a model whose input has the size `size`, and is scaled for other sizes.
    """

    size: int
    resize: int
    crop_mode: CropMode
    channels: ChannelOrder
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Interpolation = Interpolation.BILINEAR

    def resized(self, height: int, width: int) -> int:
        """Return the value of `resize`, scaled to a model with this height and width."""
        return round(max(height, width) * self.resize / self.size)

    def at(self, height: int, width: int) -> Preprocessing:
        """Return the preprocessing for an N×C×H×W model of this size, without labels."""
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


# torchvision, and most networks trained in PyTorch
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
    # Caffe's model zoo, and networks that were converted from it
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
    # 0..255 in OpenCV's order: Custom Vision, and networks trained with cv2.imread
    "bgr": replace(_BGR, scale=1.0, mean=_NONE, std=_UNIT),
    "bgr-unit": replace(_BGR, mean=_NONE, std=_UNIT),
    "bgr-inception": replace(_BGR, scale=1 / 127.5, mean=_UNIT, std=_UNIT),
    # imagenet's numbers in the order BGR, for images that OpenCV read
    "bgr-imagenet": replace(_BGR, mean=(0.406, 0.456, 0.485), std=(0.225, 0.224, 0.229)),
    # caffe's numbers in the order RGB
    "rgb-caffe": replace(_IMAGENET, scale=1.0, mean=(123.68, 116.779, 103.939), std=_UNIT),
    # CLIP's encoders, and networks fine-tuned from them
    "clip": replace(
        _IMAGENET,
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
    ),
    # the built-in model; also plain grey from 0 to 1 for any other model with one channel
    "digits": _GREY,
    "grey-inception": replace(_GREY, scale=1 / 127.5, mean=(1.0,)),
    "grey-raw": replace(_GREY, scale=1.0),
    # torchvision's MNIST examples
    "mnist": replace(_GREY, mean=(0.1307,), std=(0.3081,)),
}

OF_OWN_NORMALISATION: Mapping[float, tuple[str, str]] = {
    255: ("raw", "bgr"),
    1: ("unit", "bgr-unit"),
}
"""The presets, for RGB and for BGR, of a network that normalises pixels itself. There are two,
because a network may not show the order of its channels. The key is the largest pixel value."""

GREY_OF_OWN: Mapping[float, str] = {255: "grey-raw", 1: "digits"}
"""The preset of a network with one channel that normalises pixels itself. The key is the largest
pixel value."""


def each_preset(preprocessing: Preprocessing) -> Mapping[str, Preprocessing]:
    """Return one variant of this preprocessing per preset, with the preset's name as the key.

    Presets with another number of channels are left out. If the model takes pixels unnormalised,
    there are no variants.
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


def checked_labels(
    labels: tuple[str, ...], scores: int, source: str = "", *, right: str = ""
) -> tuple[str, ...]:
    """Return one label per class for a model with `scores` scores, or an empty tuple.

    A model with a single score may have a single label, which names the class "yes". Raises
    PreprocessingError if there are too many or too few labels. `right` is the end of its message.
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
            f"{right}"
        )
    return labels


def normalisation(
    preprocessing: Preprocessing,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return multipliers and offsets per channel such that x = pixel · multiplier + offset."""
    mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
    return (preprocessing.scale / std).astype(np.float32), (-mean / std).astype(np.float32)


def normalised(images: NDArray[np.uint8], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """Return the normalised float32 tensors of pixels (N×H×W×C), in the model's layout."""
    multiplier, offset = normalisation(preprocessing)
    tensors = images * multiplier + offset
    if preprocessing.layout is Layout.NCHW:
        tensors = np.moveaxis(tensors, -1, 1)
    return np.ascontiguousarray(tensors, np.float32)
