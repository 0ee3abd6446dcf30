"""Finds the files that may be the model of a folder or of a remote repository."""

from collections.abc import Collection
from pathlib import Path, PurePosixPath

FILE = "model.onnx"


def model_files(files: Collection[PurePosixPath]) -> list[PurePosixPath]:
    """Return the files that may be the model: model.onnx, or every *.onnx file if there is no
    model.onnx. The folder `onnx` is searched in the same way."""
    return [*_in(PurePosixPath(), files), *_in(PurePosixPath("onnx"), files)]


def _in(place: PurePosixPath, files: Collection[PurePosixPath]) -> list[PurePosixPath]:
    own = place / FILE
    if own in files:
        return [own]
    if any(file.parent == own for file in files):  # with its weights in files of their own (Triton)
        return _in(own, files)
    return sorted(file for file in files if file.parent == place and file.suffix == ".onnx")


def onnx_files_in(folder: Path) -> set[PurePosixPath]:
    """Return the *.onnx files in a folder and in its subfolder `onnx`, as paths relative to the
    folder. If one of the two has a subfolder named `model.onnx`, that is searched too."""
    places = (folder / inside for inside in ("", FILE, "onnx", f"onnx/{FILE}"))
    found = (path for place in places for path in place.glob("*.onnx") if path.is_file())
    return {PurePosixPath(path.relative_to(folder).as_posix()) for path in found}
