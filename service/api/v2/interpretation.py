"""Interprets inference requests of the V2 protocol, from HTTP or gRPC.

A request has one input: `image`, or the model's own input under its name in the file.

    image     UINT8 [n, H, W, C]       RGB pixels in the model's size, or grey ones; not normalised
    image     BYTES [n] or [n, 1]      files of images
    own name  FP32 [n, C, H, W]        normalised as the model expects; [n, H, W, C] if it expects
                                       that; also FP16, or UINT8 without normalisation, if the
                                       model's file has that type

The outputs are the scores, under their name in the model's file, and `embedding`, FP32 [n, size],
if the model has one. A request may name one or both. A request that names no output gets the
scores.

The structures below describe a request. msgspec parses JSON into them, and also converts the fields
of a protobuf message. The OpenAPI document shows their schema. The structures do not contain the
elements of a tensor: these are read after the shape of the tensor has been checked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from models import ChannelOrder, Inner
from service.api.v2.tensors import BinaryElements, Numbers
from service.batching.policy import LEVELS
from service.errors import BadRequestError, TooManyImagesError, UnsupportedError
from service.hosting.model_info import ModelInfo
from service.hosting.regions import RegionPart, Regions
from service.hosting.vectors import embedding
from service.images.file import FORMATS

INPUT = "image"

EMBEDDING = "embedding"

NUMBERS: Mapping[str, type[np.generic]] = {
    "FP32": np.float32,
    "FP16": np.float16,
    "UINT8": np.uint8,
}
"""NumPy's type for each of the protocol's datatypes."""

MEMORY = "shared memory is off; send tensors in the body, or start the server with --shared-memory"


# --- what a request says; unknown fields and parameters are ignored -------------------------------

Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Region = Annotated[
    str | None, Meta(description="registered shared memory that has the tensor (--shared-memory)")
]
RegionBytes = Annotated[Whole, Meta(description="bytes of the tensor in shared memory")]


class RequestParameters(msgspec.Struct):
    """The parameters of a whole request."""

    timeout: Annotated[
        Whole, Meta(description="deadline, in microseconds after the request arrived; 0: none")
    ] = 0
    priority: Annotated[Whole, Meta(description=LEVELS)] = 0
    binary_data_output: Annotated[bool, Meta(description="answer with a binary tensor")] = False


class InputParameters(msgspec.Struct):
    """The parameters of a request's input."""

    binary_data_size: Annotated[
        Whole | None, Meta(description="bytes of this tensor, which follow the JSON")
    ] = None
    shared_memory_region: Region = None
    shared_memory_byte_size: RegionBytes = 0
    shared_memory_offset: Whole = 0


class OutputParameters(msgspec.Struct):
    """The parameters of one output."""

    binary_data: Annotated[
        bool | None, Meta(description="answer with a binary tensor; overrides binary_data_output")
    ] = None
    classification: Annotated[
        Whole,
        Meta(description="number of best classes, as `value:index:label`; 0: the scores instead"),
    ] = 0
    shared_memory_region: Region = None
    shared_memory_byte_size: RegionBytes = 0
    shared_memory_offset: Whole = 0


class InputTensor(msgspec.Struct):
    """The only input of a request."""

    name: Annotated[str, Meta(examples=[INPUT])]
    datatype: Annotated[str, Meta(examples=["UINT8", "BYTES", "FP32"])]
    shape: Annotated[
        list[Whole],
        Meta(
            max_length=8,
            description="[n, H, W, C] of RGB pixels, [n] of encoded images, [n, C, H, W] of FP32",
        ),
    ]
    data: Annotated[
        msgspec.Raw,
        Meta(
            description="numbers from 0 to 255, base64, or FP32; flat or nested as `shape`; "
            "absent if binary data follows the JSON",
            extra_json_schema={"type": "array"},
        ),
    ] = msgspec.field(default_factory=msgspec.Raw)  # with a plain default there is no schema
    parameters: InputParameters | None = None


class OutputTensor(msgspec.Struct):
    """The name and parameters of an output that a request asks for."""

    name: str
    parameters: OutputParameters | None = None


_Tensor = TypeVar("_Tensor", InputTensor, OutputTensor)


class InferenceJson(msgspec.Struct):
    """An inference request in JSON. Binary tensors are not part of it."""

    inputs: list[InputTensor]
    outputs: list[OutputTensor] | None = None
    id: Annotated[str, Meta(description="repeated in the answer")] = ""
    parameters: RequestParameters | None = None


# --- a request, understood ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that a request asks for, and its format."""

    name: str
    binary: bool = False  # as a binary tensor
    classes: int | None = None  # this many as "value:index:label", instead of all the scores
    shared: RegionPart | None = None  # in shared memory


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request with n images, as files or as arrays, and the outputs that it asks for."""

    files: list[bytes]  # n of them; empty if there are images
    images: Numbers | None  # n pixels or tensors
    outputs: Sequence[WantedOutput]
    id: str = ""
    priority: int = 0  # 0: the default; otherwise 1 is the highest
    timeout_s: float | None = None
    copied: int = 0  # bytes of the images that were in shared memory

    @property
    def shares_memory(self) -> bool:
        """Return whether the input or an output is in shared memory."""
        return self.copied > 0 or any(output.shared is not None for output in self.outputs)

    def inner(self, info: ModelInfo) -> Sequence[str]:
        """Return the names of the inner tensors of the network that the requested outputs need in
        addition to the scores."""
        wants = any(output.name != info.scores for output in self.outputs)
        return [embedding(info).name] if wants else ()


class Elements(Protocol):
    """Reads the elements of a tensor from JSON or from bytes."""

    written: ClassVar[bool]  # in decimals, of which none is NaN or meant to be infinite

    def numbers(self, shape: Sequence[int], kind: type[np.generic]) -> Any:
        """Return the data as a uint8 or float array. Raises BadRequestError for other data."""

    def files(self, n: int) -> list[bytes]:
        """Return the data as `n` files. Raises BadRequestError for other data."""


def understand(
    asked: InferenceJson,
    elements: Callable[[InputTensor], Elements],
    info: ModelInfo,
    max_images: int,
    regions: Regions | None = None,
) -> InferRequest:
    """Convert a parsed request to an `InferRequest`, which contains the images. A tensor in shared
    memory is read from its region in `regions`. For any other tensor, `elements` returns an object
    that reads its elements.

    Raises BadRequestError if the request is invalid, and TooManyImagesError for more than
    `max_images`.
    """
    tensor = _only("input", asked.inputs, [name for name in (INPUT, info.tensor) if name], info)
    outputs = asked.outputs or [OutputTensor(info.scores)]
    names = output_names(info)
    _check_names("output", outputs, names, info)
    for name in names:
        if (times := sum(output.name == name for output in outputs)) > 1:
            raise BadRequestError(
                f"the output '{name}' is named {times} times; name each output once"
            )
    parameters = asked.parameters or RequestParameters()
    source = _shared(tensor.parameters, regions)
    read = elements if source is None else lambda _: BinaryElements(source.read(), tensor.name)
    files, images = _read_input(tensor, read, info, max_images)
    return InferRequest(
        files,
        images,
        [_wanted(output, parameters, info, regions) for output in outputs],
        id=asked.id,
        priority=parameters.priority,
        timeout_s=parameters.timeout / 1e6 if parameters.timeout else None,
        copied=0 if source is None else source.byte_size,
    )


def output_names(info: ModelInfo) -> Sequence[str]:
    """Return the names of a model's outputs, the scores first."""
    has_embedding = isinstance(info.embedding, Inner) and info.scores != EMBEDDING
    return [info.scores, EMBEDDING] if has_embedding else [info.scores]


def _wanted(
    output: OutputTensor, request: RequestParameters, info: ModelInfo, regions: Regions | None
) -> WantedOutput:
    parameters = output.parameters or OutputParameters()
    if parameters.classification and output.name != info.scores:
        raise BadRequestError(
            f"output '{output.name}' has no classes; remove its parameter `classification`, which"
            f" is only for the output '{info.scores}'"
        )
    binary = parameters.binary_data
    return WantedOutput(
        output.name,
        binary=request.binary_data_output if binary is None else binary,
        classes=parameters.classification or None,
        shared=_shared(parameters, regions),
    )


def _shared(
    parameters: InputParameters | OutputParameters | None, regions: Regions | None
) -> RegionPart | None:
    """Return the part of shared memory that holds a tensor, or None if the tensor is in the
    request. Raises the errors of `Regions.part`, and UnsupportedError if shared memory is off."""
    if parameters is None or parameters.shared_memory_region is None:
        return None
    if regions is None:
        raise UnsupportedError(MEMORY)
    return regions.part(
        parameters.shared_memory_region,
        parameters.shared_memory_offset,
        parameters.shared_memory_byte_size,
    )


def _only(kind: str, tensors: Sequence[_Tensor], names: Sequence[str], info: ModelInfo) -> _Tensor:
    """Return the request's only tensor. Raises BadRequestError if there is no tensor or more than
    one, or if its name is not in `names`."""
    _check_names(kind, tensors, names, info)
    if len(tensors) != 1:
        raise BadRequestError(
            f"expected 1 {kind} but got {len(tensors)} {kind}s for model '{info.name}'"
        )
    return tensors[0]


def _check_names(
    kind: str, tensors: Sequence[_Tensor], names: Sequence[str], info: ModelInfo
) -> None:
    """Raise BadRequestError if a tensor's name is not in `names`."""
    for tensor in tensors:
        if tensor.name not in names:
            raise BadRequestError(
                f"unexpected inference {kind} '{tensor.name[:50]}' for model '{info.name}'; "
                f"its {kind} is {' or '.join(map(repr, dict.fromkeys(names)))}"
            )


def _read_input(
    tensor: InputTensor,
    elements: Callable[[InputTensor], Elements],
    info: ModelInfo,
    max_images: int,
) -> tuple[list[bytes], Numbers | None]:
    """Return the image files of the input, or its pixels or tensors."""
    n = _image_count(tensor, info)
    if n > max_images:
        raise TooManyImagesError(
            f"the request has {n} images; at most {max_images} are allowed, so send several"
            " requests"
        )
    given = elements(tensor)
    if tensor.datatype == "BYTES":
        files = given.files(n)
        if not all(files):
            raise BadRequestError(
                f"element {files.index(b'') + 1} of input '{INPUT}' is empty; send an image"
            )
        return files, None
    if tensor.name == INPUT and tuple(tensor.shape[1:]) == info.image_shape:
        return [], in_engine_order(given.numbers((n, *info.image_shape), np.uint8), info)
    kind = NUMBERS[tensor.datatype]
    numbers = given.numbers((n, *info.tensor_shape), kind)
    if kind is not np.float32:  # numbers from JSON are not yet rounded to float16
        with np.errstate(over="ignore"):
            numbers = numbers.astype(kind, copy=False).astype(np.float32)
    # Binary numbers may be NaN or infinite, as in Triton, whose perf_analyzer sends random bytes.
    if given.written and np.isinf(numbers).any():
        raise BadRequestError(
            f"input '{tensor.name}' has a number that is too large for {tensor.datatype}"
        )
    return [], numbers


def _image_count(tensor: InputTensor, info: ModelInfo) -> int:
    """Return the number n of images in a tensor. Raises BadRequestError if the tensor's name,
    datatype or shape is not supported."""
    n, *rest = tensor.shape or [0]
    if n and tuple(rest) in _shapes(tensor, info):
        return n
    channels = "grey" if info.channels is ChannelOrder.GREY else "RGB"
    takes = (
        f"input '{INPUT}' of model '{info.name}' takes UINT8 {channels} pixels of shape "
        f"{['n', *info.image_shape]}, not normalised, or BYTES of shape [n], each "
        + (
            "an animated GIF, WebP or PNG, or a ZIP archive of images"
            if info.of_clips
            else f"a {FORMATS} file"
        )
    )
    if info.tensor:
        takes += f"; '{info.tensor}' takes {_own_kinds(info)} of shape {['n', *info.tensor_shape]}"
        takes += "" if info.tensor_type == "UINT8" else ", normalised"
    raise BadRequestError(
        f"{takes}; got {tensor.datatype[:20]} of shape {str(list(tensor.shape))[:80]}".replace(
            "['n'", "[n"
        )
    )


def _shapes(tensor: InputTensor, info: ModelInfo) -> Sequence[tuple[int, ...]]:
    """Return the shapes that one image can have in a tensor of this name and datatype."""
    if tensor.name == INPUT and tensor.datatype == "BYTES":
        return (), (1,)
    shapes = []
    if tensor.name == INPUT and tensor.datatype == "UINT8":
        shapes.append(info.image_shape)
    if tensor.name == info.tensor and tensor.datatype in ("FP32", info.tensor_type):
        shapes.append(info.tensor_shape)
    return shapes


def _own_kinds(info: ModelInfo) -> str:
    """Return the datatypes that the model's own input accepts, as a phrase for an error message."""
    if info.tensor_type == "UINT8":
        return "UINT8 or FP32, pixels from 0 to 255,"
    return "FP32" if info.tensor_type == "FP32" else f"{info.tensor_type} or FP32"


def in_engine_order(pixels: NDArray[np.uint8], info: ModelInfo) -> NDArray[np.uint8]:
    """Return RGB pixels with their channels in the engine's order, as a view of the same memory."""
    return pixels[..., ::-1] if info.channels is ChannelOrder.BGR else pixels
