"""Finds a model's image input, and refuses inputs that are not images."""

from dataclasses import dataclass

from onnx import ModelProto, TensorProto, TypeProto

from models.errors import UnsupportedModelError
from models.onnx_loader.file import remedy

_FLOATS = {
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.DOUBLE,
    TensorProto.BFLOAT16,
}

_PLAIN = "N×3×H×W, or N×H×W×3, with the batch first"


@dataclass(frozen=True, slots=True)
class ImageInput:
    """The name, type and shape of the only input of a model."""

    name: str
    elements: int  # a type of TensorProto
    shape: tuple[int | None, ...]  # for one image; None: an open size

    @property
    def takes_bytes(self) -> bool:
        """Return whether the input expects pixels from 0 to 255, as uint8."""
        return self.elements == TensorProto.UINT8

    @property
    def takes_halves(self) -> bool:
        """Return whether the input is float16."""
        return self.elements == TensorProto.FLOAT16


def image_input(proto: ModelProto) -> ImageInput:
    """Return the only input of a model.

    Raises UnsupportedModelError if the model has another number of inputs, or if the input cannot
    be an image.
    """
    initializers = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value for value in proto.graph.input if value.name not in initializers]
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs[:8]) or "none"
        names += ", ..." if len(inputs) > 8 else ""
        raise UnsupportedModelError(
            f"the model has {len(inputs)} inputs ({names}); a classifier must have one, the image"
            f"{remedy(proto)}"
        )
    (value,) = inputs
    if not value.type.HasField("tensor_type"):
        raise UnsupportedModelError(
            f"input {value.name} is not a tensor; export the model with a tensor, {_PLAIN}"
        )
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise UnsupportedModelError(
            f"input {value.name} has no shape; export the model with the shape {_PLAIN}"
        )
    _check_elements(value.name, tensor)
    _check_axes(value.name, tensor)
    dims = tensor.shape.dim
    shape = tuple(dim.dim_value if dim.dim_value > 0 else None for dim in dims[1:])
    return ImageInput(value.name, tensor.elem_type, shape)


def _check_elements(name: str, tensor: TypeProto.Tensor) -> None:
    elements, what = tensor.elem_type, f"input {name} of the shape {_shown(tensor)}"
    is_bytes = elements == TensorProto.UINT8
    if elements == TensorProto.STRING or (is_bytes and len(tensor.shape.dim) < 3):
        raise UnsupportedModelError(
            f"{what} takes encoded files, which Convoy decodes itself; export the model without its"
            f" decoder, with an input of pixels: {_PLAIN}"
        )
    if elements in _FLOATS or is_bytes:
        return
    kind = TensorProto.DataType.Name(elements) if elements in TensorProto.DataType.values() else "?"
    raise UnsupportedModelError(
        f"{what} has the type {kind}; it must be float32, float16, float64, bfloat16 or uint8."
        " Export the model with one of these types. If the model is quantized, keep the float input"
        " before its first QuantizeLinear"
    )


def _check_axes(name: str, tensor: TypeProto.Tensor) -> None:
    shown, sizes = _shown(tensor), [dim.dim_value for dim in tensor.shape.dim]
    what = f"input {name} of the shape {shown}"
    if len(sizes) == 3 and {1, 3}.intersection((sizes[0], sizes[-1])):
        raise UnsupportedModelError(
            f"{what} is one image without a batch axis; export the model with N×{shown}"
        )
    if len(sizes) == 2:
        raise UnsupportedModelError(
            f"{what} is a row of numbers per image; export the model with an input of images,"
            f" {_PLAIN}, followed by a Reshape or Flatten"
        )
    if len(sizes) not in (4, 5):
        raise UnsupportedModelError(
            f"{what} is not an image: it must have the axes {_PLAIN}, or N×3×D×H×W for clips"
        )


def _shown(tensor: TypeProto.Tensor) -> str:
    """Return a shape as text, including the batch axis. A symbolic size is shown by its name."""
    dims = tensor.shape.dim
    sizes = [str(dim.dim_value) if dim.dim_value > 0 else dim.dim_param[:20] or "?" for dim in dims]
    return "×".join(sizes) or "()"
