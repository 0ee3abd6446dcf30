"""Serves the model with BentoML. BentoML's processes import this module."""

import bentoml
from PIL.Image import Image

from benchmarks.peers.servers.work import MAX_BATCH, Answer, settings_given, work_of

SETTINGS = settings_given()

_choices = dict(SETTINGS.choices)
_batched = _choices.pop("batched")
_of_service = {key: _choices.pop(key) for key in ("threads", "workers") if key in _choices}


class Model:
    """Holds the model. Both services, Batched and Unbatched, classify with it."""

    def __init__(self) -> None:
        self._work = work_of(SETTINGS)

    def classify(self, images: list[Image]) -> list[Answer]:
        """Classify a batch."""
        scores = self._work.scores([self._work.decode(image) for image in images])
        return [self._work.answer(row) for row in scores]


class Batched(Model):
    """A service whose requests are forms with image files. BentoML batches the files of several
    requests."""

    @bentoml.api(  # type: ignore[untyped-decorator]
        route="/predict", batchable=True, max_batch_size=MAX_BATCH, **_choices
    )
    def predict(self, images: list[Image]) -> list[Answer]:
        """Classify a batch."""
        return self.classify(images)


class Unbatched(Model):
    """A service whose requests have one image as the body."""

    @bentoml.api(route="/predict")  # type: ignore[untyped-decorator]
    def predict(self, image: Image, /) -> Answer:
        """Classify one image."""
        return self.classify([image])[0]


Classifier = bentoml.service(logging={"access": {"enabled": False}}, **_of_service)(
    Batched if _batched else Unbatched
)
