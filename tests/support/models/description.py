"""Reads only a model's preprocessing from the files that describe the model."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from models.description import load_description
from models.preprocessing import Preprocessing


def load_preprocessing(
    path: Path, shape: Sequence[int | None], overrides: Mapping[str, object] | None = None
) -> Preprocessing:
    return load_description(path, shape, overrides).preprocessing
