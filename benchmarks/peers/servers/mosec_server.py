"""Serves the model with mosec. mosec's workers are processes that import this module."""

import json
from typing import Any

from mosec import Server, Worker

from benchmarks.peers.servers.work import settings_given, work_of

SETTINGS = settings_given()


class Classifier(Worker):  # type: ignore[misc]  # not installed where types are checked
    """Classifies batches of images. mosec forms the batches, and passes the body of each request on
    unchanged."""

    resp_mime_type = "application/json"

    def __init__(self) -> None:
        self._work = work_of(SETTINGS)

    def deserialize(self, data: bytearray) -> bytes:
        """Return the body."""
        return bytes(data)

    def forward(self, data: Any) -> Any:
        """Classify a batch, or one image if batching is off."""
        bodies = data if isinstance(data, list) else [data]
        scores = self._work.scores([self._work.decode(body) for body in bodies])
        answers = [self._work.answer(row) for row in scores]
        return answers if isinstance(data, list) else answers[0]

    def serialize(self, data: Any) -> bytes:
        """Return one image's answer as JSON."""
        return json.dumps(data).encode()


def main() -> None:
    """Serve until the process is terminated."""
    server = Server()
    server.append_worker(Classifier, route="/predict", **SETTINGS.choices)
    server.run()


if __name__ == "__main__":
    main()
