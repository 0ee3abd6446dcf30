"""A model's pipeline leaves the resizing of few images to its engines if all of them resize."""

from itertools import product

import pytest

from models import Kind
from tests.support import PATIENCE_S
from tests.support.service.fakes import FakeEngine, make_repository


@pytest.mark.anyio
async def test_resizing_is_left_to_engines_that_all_resize_as_long_as_few_images_are_inside() -> (
    None
):
    engines = FakeEngine(), FakeEngine()
    repository = make_repository(engines[0], others=engines[1:])
    await repository.warm_up()
    (pipeline,) = repository.models.values()
    for able in product(Kind, Kind):
        for engine, takes in zip(engines, able, strict=True):
            engine.takes = takes
        left = [kind for kind in (Kind.DECODED, Kind.JPEG) if kind <= min(able)]
        assert list(pipeline.left) == left
    pipeline.admission.images += 128
    assert list(pipeline.left) == [Kind.DECODED, Kind.JPEG]
    pipeline.admission.images += 1  # a file takes no more memory than its request's body
    assert list(pipeline.left) == [Kind.JPEG]
    pipeline.admission.images -= 129
    await repository.close(PATIENCE_S)
