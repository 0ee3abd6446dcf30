"""Reads weights that a model stores in other files. These files must be inside the model's folder.

Files directly in the folder are always read, because exporters write them (`model.onnx.data`).
Files in subfolders are read only with the option `--external-data`.
"""

from pathlib import Path, PurePath

import onnx
from onnx import ModelProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor

from models.errors import ModelFileError
from models.onnx_loader.limits.bounds import shortened
from models.onnx_loader.limits.census import tensors


def read_external_data(path: Path, model: ModelProto, *, allowed: bool, max_bytes: int) -> None:
    """Read the external data of `model` into its tensors.

    `path` is the path of the model. `max_bytes` bounds the total size of the model file and its
    external data. Raises ModelFileError if external data is missing or unsafe to read, or if it is
    in a subfolder and `allowed` is False.
    """
    external = _external(model)
    if not external:
        return
    folder = path.resolve().parent
    room = max_bytes - path.stat().st_size
    for tensor in external:
        try:
            room -= _check(path, folder, tensor, inner=allowed)
            if room < 0:
                raise ModelFileError(
                    f"{path} and its external data exceed {max_bytes:,} bytes, which is the limit"
                )
            load_external_data_for_tensor(tensor, str(folder))
        # A ValueError means an invalid number or a path with a NUL.
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise ModelFileError(
                f"{path}: cannot read the external data of {tensor.name}: {shortened(str(error))}"
            ) from error
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def external_names(model: ModelProto) -> set[str]:
    """Return the names of the files in which `model` stores weights. The names may be unsafe
    paths."""
    entries = (entry for tensor in _external(model) for entry in tensor.external_data)
    names = (entry.value for entry in entries if entry.key == "location")
    return {name for name in names if isinstance(name, str)}  # text that is not UTF-8 is bytes


def _external(model: ModelProto) -> list[TensorProto]:
    return [tensor for tensor in tensors(model) if tensor.data_location == TensorProto.EXTERNAL]


def _check(path: Path, folder: Path, tensor: TensorProto, *, inner: bool) -> int:
    """Check the external data of `tensor`, and return its size in bytes. Raises ModelFileError if
    the data is missing or unsafe to read."""
    info = ExternalDataInfo(tensor)
    offset, length = info.offset or 0, info.length
    where = f"{path}: external data of {tensor.name} in {shortened(ascii(info.location))}"
    # protobuf returns text that is not UTF-8 as bytes.
    name = info.location if isinstance(info.location, str) else ""
    file, plain = folder / name, PurePath(name)
    inside = name.isprintable() and plain.parts and not plain.is_absolute()
    on_the_way = (file, *file.parents[: len(plain.parts) - 1])  # without the model's folder
    if not inside or ".." in plain.parts or any(folder.is_symlink() for folder in on_the_way):
        raise ModelFileError(
            f"{where} is refused: the name must be a relative path inside the model's folder,"
            " without '..' and without symbolic links"
        )
    if file.parent != folder and not inner:
        raise ModelFileError(f"{where} is in another folder; pass --external-data to read it")
    if not file.is_file():
        what = "is not a regular file" if file.exists() else "does not exist"
        raise ModelFileError(f"{where} {what}; copy it to the model's folder")
    size = file.stat().st_size
    length = size - offset if length is None else length
    if offset < 0 or length < 0 or offset + length > size:
        raise ModelFileError(
            f"{where} has {size} bytes, but bytes {offset} to {offset + length} are needed; copy"
            " the whole file again"
        )
    return int(length)
