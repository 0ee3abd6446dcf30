"""Reads embeddings from an engine's results: one vector of finite numbers per image."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from models import Inner
from service.engine.ranking import ScoreRow
from service.errors import EngineFailedError, UnsupportedError
from service.hosting.model_info import ModelInfo


def embedding(info: ModelInfo) -> Inner:
    """Return the tensor inside the network from which the model's embedding is computed. Raises
    UnsupportedError if the model has none."""
    if isinstance(info.embedding, Inner):
        return info.embedding
    raise UnsupportedError(f"the model '{info.name}' has no embedding: {info.embedding.reason}")


def embeddings_of(rows: Sequence[ScoreRow], info: ModelInfo) -> NDArray[np.float32]:
    """Return the embeddings in an engine's results, one row per image. Raises EngineFailedError if
    a number is not finite."""
    name = embedding(info).name
    vectors = np.stack([row.inner[name] for row in rows])
    if not np.isfinite(vectors).all():
        raise EngineFailedError(
            "the model computed an embedding with a number that is not finite; "
            "check the image, the model and its preprocessing"
        )
    return vectors


def normalise(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the vectors scaled to length 1, so that their dot products are cosines. Zero vectors
    remain zero."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
