"""From a path to a checked ModelProto, refusing early whatever a hostile file could do.

read_model   size limit → parse → opset and type limits → external data → onnx.checker
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor

from models.errors import ModelFileError, UnsupportedModelError

OLDEST_OPSET = 7
NEWEST_OPSET: int = onnx.defs.onnx_opset_version()
# Protobuf, and so ONNX without external data, ends at 2 GiB.
MAX_MODEL_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class FileLimits:
    """What a model file may be.

    `external_data` allows weights in files beside the model, and only inside its folder;
    `max_bytes` bounds the model and its external data together.
    """

    max_bytes: int = MAX_MODEL_BYTES
    external_data: bool = False


def read_model(path: Path, limits: FileLimits) -> ModelProto:
    """The model in `path`, complete and valid; ModelFileError or UnsupportedModelError if not."""
    try:
        if not path.is_file():
            what = "is a folder, not a file" if path.is_dir() else "does not exist"
            raise ModelFileError(f"{path} {what}; give the path of an .onnx file")
        size = path.stat().st_size
        if size > limits.max_bytes:
            raise ModelFileError(f"{path} has {size:,} bytes; the limit is {limits.max_bytes:,}")
        data = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelFileError(f"{path} is not an ONNX model, or is truncated") from error
    if not model.HasField("graph") or not model.opset_import:
        raise ModelFileError(f"{path} is not an ONNX model: it has no graph or no opset")
    _check_opset(path, model)
    _read_external_data(path, model, limits)
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ModelFileError(f"{path} is not a valid ONNX model: {first}") from error
    return model


def _check_opset(path: Path, model: ModelProto) -> None:
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and not OLDEST_OPSET <= opset.version <= NEWEST_OPSET:
            raise UnsupportedModelError(
                f"{path} uses opset {opset.version}; Convoy reads {OLDEST_OPSET} to {NEWEST_OPSET}."
                " Export it again, or convert it with onnx.version_converter"
            )


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every tensor of a graph, those in attributes and subgraphs too."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        for attribute in node.attribute:
            yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    if attribute.HasField("g"):
        yield from _tensors(attribute.g)
    for graph in attribute.graphs:
        yield from _tensors(graph)


def _read_external_data(path: Path, model: ModelProto, limits: FileLimits) -> None:
    tensors = list(_tensors(model.graph))
    for function in model.functions:
        for node in function.node:
            for attribute in node.attribute:
                tensors.extend(_attribute_tensors(attribute))
    external = [tensor for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL]
    if not external:
        return
    if not limits.external_data:
        raise ModelFileError(
            f"{path} keeps {len(external)} weights in other files ({external[0].name}, ...);"
            " pass --external-data to read them from the model's own folder"
        )
    folder = path.resolve().parent
    room = limits.max_bytes - path.stat().st_size
    for tensor in external:
        room -= _check_external(path, folder, tensor)
        if room < 0:
            raise ModelFileError(f"{path} and its external data exceed {limits.max_bytes:,} bytes")
        try:
            load_external_data_for_tensor(tensor, str(folder))
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise ModelFileError(f"{path}: external data of {tensor.name}: {error}") from error
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def _check_external(path: Path, folder: Path, tensor: TensorProto) -> int:
    """The number of bytes `tensor` keeps in another file; ModelFileError unless that is safe."""
    try:
        info = ExternalDataInfo(tensor)
        offset, length = info.offset or 0, info.length
    except (ValueError, TypeError) as error:
        raise ModelFileError(f"{path}: external data of {tensor.name}: {error}") from error
    where = f"{path}: external data of {tensor.name} in {info.location!r}"
    file = folder / info.location
    if not info.location or file.resolve() != file or not file.resolve().is_relative_to(folder):
        raise ModelFileError(
            f"{where} is refused: it must be a plain relative path inside the model's folder,"
            " with no '..' and no symbolic link"
        )
    if not file.is_file():
        raise ModelFileError(f"{where} does not exist; copy it beside the model")
    size = file.stat().st_size
    length = size - offset if length is None else length
    if offset < 0 or length < 0 or offset + length > size:
        raise ModelFileError(f"{where}: bytes {offset} to {offset + length} of {size} do not exist")
    return int(length)
