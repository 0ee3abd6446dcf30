"""Classifies images in Triton. Triton's Python backend runs this module in a separate process."""

from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from benchmarks.peers.servers.work import settings_given, work_of


class TritonPythonModel:
    """Computes and ranks the scores for the requests that Triton has batched."""

    def initialize(self, _: Any) -> None:
        """Open the model."""
        self._given = settings_given()
        self._work = work_of(self._given)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return a response with probabilities for each request. A request has one image."""
        bodies = [
            triton.get_input_tensor_by_name(request, "image").as_numpy().item()
            for request in requests
        ]
        scores = self._work.scores([self._work.decode(body) for body in bodies])
        if self._given.logits:
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores = weights / weights.sum(axis=1, keepdims=True)
        return [
            triton.InferenceResponse([triton.Tensor("scores", row[np.newaxis])]) for row in scores
        ]
