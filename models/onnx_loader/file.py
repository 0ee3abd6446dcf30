"""Reads a file as a checked ModelProto. Cheap checks come first, so that hostile files are refused
early.

read_model   size → fields, names → parse → opset → nodes, tensors → external data → onnx.checker
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from os import fstat
from pathlib import Path
from typing import TypeVar

import onnx
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto

from models.errors import ModelError, ModelFileError, UnsupportedModelError
from models.first_bytes import Signature, name_of
from models.onnx_loader.external import external_names, read_external_data
from models.onnx_loader.limits.bounds import shortened
from models.onnx_loader.limits.census import all_nodes, check_census, check_stored, names_read
from models.onnx_loader.limits.wire import MalformedError, check_wire

OLDEST_OPSET = 7
NEWEST_OPSET: int = onnx.defs.onnx_opset_version()
# Protobuf messages, and so ONNX files without external data, have at most 2 GiB.
MAX_MODEL_BYTES = 2**31 - 1

_Checked = TypeVar("_Checked", bytes, ModelProto)


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits on a model file.

    `external_data` allows weights in subfolders of the model's folder. `max_bytes` bounds the total
    size of the model file and its external data.
    """

    max_bytes: int = MAX_MODEL_BYTES
    external_data: bool = False


def read_model(path: Path, limits: FileLimits) -> ModelProto:
    """Read the model file `path` and check it. Raises ModelFileError or UnsupportedModelError."""
    data = _read(path, limits.max_bytes)
    model = _parse(path, data)
    if not model.HasField("graph") or not model.opset_import:
        raise _no_model(path, data, ": it has no graph or no opset")
    _check_opset(path, model)
    _refuse(path, check_census, model)
    read_external_data(path, model, allowed=limits.external_data, max_bytes=limits.max_bytes)
    _refuse(path, check_stored, model)
    _sort_nodes(model.graph)
    try:
        check_valid(model)
    # A RuntimeError is a failed assertion of onnx.
    except (onnx.checker.ValidationError, ValueError, RuntimeError) as error:
        raise ModelFileError(
            f"{path} is not a valid ONNX model: {_first_line(error)}{remedy(model)}"
        ) from error
    return model


def _sort_nodes(graph: GraphProto) -> None:
    """Move each node behind the nodes whose outputs it reads, if it is not there. Nodes in a circle
    stay where they are.

    ONNX Runtime also runs files with other orders, and its converter to float16 writes them.
    """
    nodes = list(graph.node)
    writers: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            writers.setdefault(name, index)
    reads = [
        {writers[name] for name in names_read(node) if name and name in writers} for node in nodes
    ]
    if all(max(each, default=-1) < index for index, each in enumerate(reads)):
        return
    readers: dict[int, list[int]] = {}
    for index, each in enumerate(reads):
        for writer in each:
            readers.setdefault(writer, []).append(index)
    missing = [len(each) for each in reads]
    ready = [index for index, count in enumerate(missing) if not count]
    order = []
    while ready:  # a heap: of the nodes that can be next, the first in the file is next
        order.append(heappop(ready))
        for index in readers.get(order[-1], []):
            missing[index] -= 1
            if not missing[index]:
                heappush(ready, index)
    if len(order) == len(nodes):
        del graph.node[:]
        graph.node.extend(nodes[index] for index in order)


def remedy(model: ModelProto) -> str:
    """Return advice to append to an error message if tf2onnx exported the model, or ""
    otherwise."""
    if model.producer_name != "tf2onnx":
        return ""
    return (
        ". tf2onnx writes such files for layers that it cannot express, such as Keras'"
        " Normalization, grouped Conv2D and exact GELU; export with Keras' PyTorch backend"
        " (KERAS_BACKEND=torch), or replace these layers as docs/from-keras.md shows"
    )


def check_valid(model: ModelProto) -> None:
    """Run onnx's checker on the model, except on the old operators that Convoy replaces.

    The checker refuses these operators, although ONNX Runtime runs them. Raises the errors of
    `onnx.checker.check_model`.
    """
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    opset = opsets.get("", opsets.get("ai.onnx", 0))
    old = [
        node
        for node in all_nodes(model)
        if node.domain in ("", "ai.onnx")
        and _is_dropped(node.op_type, opset)
        and _is_spelled_out(node.op_type, opset)
    ]
    for node in old:
        node.domain = _HIDDEN
    if old:
        model.opset_import.add(domain=_HIDDEN, version=1)
    try:
        onnx.checker.check_model(model)
    finally:
        for node in old:
            node.domain = ""
        if old:
            del model.opset_import[-1]


_HIDDEN = "convoy.old"


def _is_spelled_out(op: str, opset: int) -> bool:
    # This module imports onnx-ir, which takes 0.6 s. Few files have operators that onnx has
    # removed.
    from models.onnx_loader.old_operators import is_spelled_out  # noqa: PLC0415

    return is_spelled_out(op, opset)


def _is_dropped(op: str, opset: int) -> bool:
    known = onnx.defs.has(op, opset)
    return not known or bool(onnx.defs.get_schema(op, opset).deprecated)


def external_files(path: Path) -> set[str]:
    """Return the names of the other files that contain weights of the model in `path`.

    Raises ModelFileError if the file is not a model.
    """
    return external_names(_parse(path, _read(path, MAX_MODEL_BYTES)))


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        if not path.is_file():
            what = "does not exist"
            if path.exists():
                what = "is a folder, not a file" if path.is_dir() else "is not a regular file"
            raise ModelFileError(f"{path} {what}; give the path of an .onnx file")
        with path.open("rb") as file:
            size = fstat(file.fileno()).st_size
            if size > max_bytes:
                raise ModelFileError(f"{path} has {size:,} bytes; the limit is {max_bytes:,}")
            # Read one byte more than the size, because files under /proc report a size of 0.
            data = file.read(size + 1)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) != size:
        raise ModelFileError(
            f"{path} changed its size while it was read; use a copy that no program changes"
        )
    return data


def _parse(path: Path, data: bytes) -> ModelProto:
    model = ModelProto()
    try:
        _refuse(path, check_wire, data)
        model.ParseFromString(data)
    except (MalformedError, DecodeError) as error:
        raise _no_model(path, data, ", or is truncated") from error
    return model


_EXPORT = "export the model as docs/from-pytorch.md or docs/from-keras.md says"

# Files that people may have instead of a model, or under the model's name.
_OTHERS = (
    Signature(
        "a Git LFS pointer; run `git lfs pull` to fetch the file itself",
        {0: b"version https://git-lfs"},
    ),
    Signature("HTML or XML; download the file itself, not the page about it", {0: b"<"}),
    Signature(f"a ZIP archive, as PyTorch and Keras save models; {_EXPORT}", {0: b"PK\x03\x04"}),
    Signature(f"a pickle, as older PyTorch saves models; {_EXPORT}", {0: b"\x80\x02"}),
    Signature(f"an HDF5 file, as older Keras saves models; {_EXPORT}", {0: b"\x89HDF"}),
    Signature(f"a safetensors file, which has weights and no network; {_EXPORT}", {8: b'{"'}),
    Signature(
        "a TensorFlow Lite model; convert it with `python -m tf2onnx.convert --tflite`",
        {4: b"TFL3"},
    ),
    Signature(
        "a file in ONNX Runtime's own format; give the .onnx file from which it was made",
        {4: b"ORTM"},
    ),
    Signature("compressed by gzip; unpack it", {0: b"\x1f\x8b"}),
    *(
        Signature("an image; give an .onnx file as the model", {0: mark})
        for mark in (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF")
    ),
)


def _no_model(path: Path, data: bytes, how: str) -> ModelFileError:
    """Return the error for a file that is not a model. The message names the kind of file if it is
    known."""
    kind = name_of(data, _OTHERS) if data else "empty; copy or download it again"
    said = f", but {kind}" if kind else f"{how}; give an .onnx file"
    return ModelFileError(f"{path} is not an ONNX model{said}")


def _refuse(path: Path, check: Callable[[_Checked], None], what: _Checked) -> None:
    """Run a check of a file's content. If the check raises an error, add the file's path to the
    message."""
    try:
        check(what)
    except ModelError as error:
        raise type(error)(f"{path} is refused: {error}") from error


def _first_line(error: Exception) -> str:
    return shortened(str(error).strip().partition("\n")[0])


def _check_opset(path: Path, model: ModelProto) -> None:
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and not OLDEST_OPSET <= opset.version <= NEWEST_OPSET:
            raise UnsupportedModelError(
                f"{path} uses opset {opset.version}; Convoy reads opsets {OLDEST_OPSET} to"
                f" {NEWEST_OPSET}. Export the model with one of these opsets, or convert it with"
                " onnx.version_converter"
            )
