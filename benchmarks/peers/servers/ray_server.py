"""Serves the model with Ray Serve."""

import json
import signal
import threading

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.peers.servers.work import MAX_BATCH, settings_given, work_of

SETTINGS = settings_given()

_choices = dict(SETTINGS.choices)
_replicas = _choices.pop("num_replicas", 1)


@serve.deployment(
    num_replicas=_replicas,
    max_ongoing_requests=64,
    logging_config={"enable_access_log": False, "log_level": "WARNING"},
)
class Classifier:
    """Classifies batches of images, which Ray Serve forms."""

    def __init__(self) -> None:
        self._work = work_of(SETTINGS)

    @serve.batch(max_batch_size=MAX_BATCH, **_choices)  # type: ignore[untyped-decorator]
    async def classify(self, bodies: list[bytes]) -> list[bytes]:
        """Classify a batch."""
        scores = self._work.scores([self._work.decode(body) for body in bodies])
        return [json.dumps(self._work.answer(row)).encode() for row in scores]

    async def __call__(self, request: Request) -> Response:
        """Classify one image."""
        done = await self.classify(await request.body())
        return Response(done, media_type="application/json")


def main() -> None:
    """Serve until terminated."""
    ray.init(
        include_dashboard=False,
        num_cpus=4,
        logging_level="warning",
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    serve.start(http_options={"host": "127.0.0.1", "port": SETTINGS.port})
    serve.run(Classifier.bind(), route_prefix="/predict")  # type: ignore[attr-defined]
    stop = threading.Event()
    # The handler is set now, because Ray sets another one while it starts.
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
