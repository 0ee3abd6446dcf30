"""Serves the model with LitServe."""

from typing import Annotated, Any

import litserve as ls
import numpy as np
from fastapi import Body
from numpy.typing import NDArray

from benchmarks.peers.servers.work import Answer, Settings, settings_given, work_of


class Classifier(ls.LitAPI):  # type: ignore[misc]  # not installed where types are checked
    """Implements the methods that LitServe calls, with the functions of work.py. LitServe passes
    bodies that are not JSON on unchanged."""

    def __init__(self, settings: Settings, **choices: Any) -> None:
        super().__init__(**choices)
        self._settings = settings

    def setup(self, device: str) -> None:  # noqa: ARG002  given by name
        """Open the model in the worker."""
        self._work = work_of(self._settings)

    def decode_request(self, request: Annotated[bytes, Body()]) -> NDArray[np.uint8]:
        """Return one image of a request."""
        return self._work.decode(request)

    def batch(self, inputs: list[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
        """Return the images unchanged, because `Work.scores` stacks them."""
        return inputs

    def predict(self, x: Any) -> Any:
        """Return the scores of a batch, or of one image if batching is off."""
        return self._work.scores(x) if isinstance(x, list) else self._work.scores([x])[0]

    def unbatch(self, output: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Return the row of scores of each image."""
        return list(output)

    def encode_response(self, output: NDArray[np.float32]) -> Answer:
        """Return the five likeliest classes as JSON."""
        return self._work.answer(output)


class Unbatched(Classifier):
    """A Classifier without batching. It hides the methods for batches from LitServe."""

    batch = ls.LitAPI.batch
    unbatch = ls.LitAPI.unbatch


def main() -> None:
    """Serve until terminated."""
    settings = settings_given()
    choices = dict(settings.choices)
    of_server = {
        key: choices.pop(key) for key in ("fast_queue", "workers_per_device") if key in choices
    }
    kind = Classifier if choices.get("max_batch_size", 1) > 1 else Unbatched
    server = ls.LitServer(kind(settings, **choices), accelerator="cpu", **of_server)
    server.run(
        host="127.0.0.1",
        port=settings.port,
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )


if __name__ == "__main__":
    main()
