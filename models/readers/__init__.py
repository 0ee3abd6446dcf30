"""Reads files that other programs store beside a model, such as labels and preprocessing. Each kind
of file has a reader.

A reader takes the path of a file. It returns a `Reading`, or None if the file is not of its kind.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePath
from typing import TypeVar

from models.readers.labels import NotLabelsError, read_label_file
from models.readers.lobe import read_lobe
from models.readers.paddle import read_paddle
from models.readers.reading import Reading
from models.readers.timm import read_timm
from models.readers.transformers import read_config, read_processor
from models.readers.triton import NAME as TRITONS
from models.readers.triton import read_triton

Reader = Callable[[Path], Reading | None]
_Path = TypeVar("_Path", bound=PurePath)

__all__ = [
    "FILES",
    "READERS",
    "TRITONS",
    "NotLabelsError",
    "Reading",
    "files_beside",
    "folders_beside",
    "read_beside",
    "unread_beside",
]

_LABELS = (
    *("labels.txt", "classes.txt", "names.txt", "class_names.txt", "synset.txt"),
    *("synset_words.txt", "labels.json", "classes.json", "class_names.json", "class_indices.json"),
    *("class_to_idx.json", "idx_to_class.json", "index_to_name.json", "id2label.json"),
    *("label2id.json", "label_map.json", "categories.json", "imagenet_class_index.json"),
    *("labels.csv", "classes.csv", "class_names.csv", "labels.tsv", "labels.yaml", "labels.yml"),
    *("data.yaml", "data.yml", "metadata.yaml"),
)

# Names of files that probably list labels, but that no reader reads.
_LIKE_LABELS = re.compile(
    r"(?i).*(label|class|synset|categor|names|mapping).*"
    r"\.(txt|json|ya?ml|[ct]sv|xml|toml|jsonl|xlsx?|pbtxt|names|labels|pkl|npy|pth?)"
    r"|.*\.(names|labels)"
)
_AS_THE_MODEL = (".txt", ".json", ".csv", ".names", ".labels", ".yaml")
_SHOWN = 3


def read_labels(path: Path) -> Reading:
    """Return a Reading of a file whose name, such as labels.txt, shows that it lists labels."""
    return Reading(path, labels=partial(read_label_file, path))


READERS: Sequence[tuple[str, Reader]] = (
    ("config.json", read_timm),
    ("processor_config.json", read_processor),  # transformers prefers it, too
    ("preprocessor_config.json", read_processor),
    ("config.json", read_config),
    ("inference.yml", read_paddle),
    ("inference_cls.yaml", read_paddle),
    (TRITONS, read_triton),
    ("signature.json", read_lobe),
    *((name, read_labels) for name in _LABELS),
)
"""The name of each file, and its reader. If two files contradict each other, the earlier entry
counts."""

FILES = tuple(dict.fromkeys(name for name, _ in READERS))
"""The names of all files that the readers read."""


def folders_beside(model_path: _Path) -> list[_Path]:
    """Return the model's folder, and the folders above it that belong to the same export.

    In some exports, the model is in a subfolder with the name `onnx` (optimum), with a version
    number as its name, or with the name `model.onnx` (Triton).
    """
    folders = [model_path.parent]
    while folders[-1].name in ("onnx", "model.onnx") or folders[-1].name.isdecimal():
        folders.append(folders[-1].parent)
    return folders


def files_beside(model_path: _Path, files: Iterable[_Path]) -> list[_Path]:
    """Return the files beside a model that readers read.

    Text files are included, because other files may refer to them.
    """
    folders = folders_beside(model_path)
    return [
        file
        for file in files
        if file.parent in folders and (file.name in FILES or file.suffix == ".txt")
    ]


def read_beside(model_path: Path) -> Iterator[Reading]:
    """Read the files beside a model, and yield the result of each reader, in the order of READERS.

    The files are in the folders that `folders_beside` returns. Raises PreprocessingError if a file
    is invalid.
    """
    for name, read in READERS:
        for folder in folders_beside(model_path):
            path = folder / name
            if path.is_file() and (reading := read(path)) is not None:
                yield reading


def unread_beside(model_path: Path) -> list[str]:
    """Return the names of a few files beside a model that may list labels but are not read."""
    own = [f"{model_path.stem}{suffix}" for suffix in _AS_THE_MODEL]
    found = []
    for folder in folders_beside(model_path):
        with suppress(OSError):  # the folder is missing or cannot be listed
            names = (path.name for path in folder.iterdir() if path.is_file())
            found += [name for name in names if name in own or _LIKE_LABELS.fullmatch(name)]
    return sorted(set(found).difference(FILES))[:_SHOWN]
