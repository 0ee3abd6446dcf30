"""Reads the files that lie beside a model as other programs write them, one reader a kind of file.

Each reader takes a path and returns a `Reading`, or None where the file is another program's.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from models.readers.paddle import read_paddle
from models.readers.reading import Reading, read_label_file
from models.readers.timm import read_timm
from models.readers.transformers import read_config, read_processor
from models.readers.triton import read_triton

Reader = Callable[[Path], Reading | None]

__all__ = ["FILES", "READERS", "Reading", "read_beside"]


def read_labels(path: Path) -> Reading:
    """Read a file that is known by its name to have one label a line."""
    return Reading(path, labels=lambda: read_label_file(path))


READERS: Sequence[tuple[str, Reader]] = (
    ("config.json", read_timm),
    ("preprocessor_config.json", read_processor),
    ("config.json", read_config),
    ("inference.yml", read_paddle),
    ("inference_cls.yaml", read_paddle),
    ("config.pbtxt", read_triton),
    ("labels.txt", read_labels),
    ("classes.txt", read_labels),
)
"""The readers by the name of their file; where two files differ, the first of them counts."""

FILES = tuple(dict.fromkeys(name for name, _ in READERS))
"""The names of all files that are read."""


def read_beside(model_path: Path) -> Iterator[Reading]:
    """Yield what is read beside a model, or one folder up, in the order of READERS.

    The folder above counts where the model's own is a part of an export: `onnx` as optimum writes,
    a version's number or `model.onnx` as Triton has. Raises PreprocessingError.
    """
    places = [model_path.parent]
    while places[-1].name in ("onnx", "model.onnx") or places[-1].name.isdecimal():
        places.append(places[-1].parent)
    for name, read in READERS:
        for place in places:
            path = place / name
            if path.is_file() and (reading := read(path)) is not None:
                yield reading
