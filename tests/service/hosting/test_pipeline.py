"""A model's pipeline leaves resizing to its engines where all of them resize, for few images."""

import pytest

from tests.support.service.fakes import FakeEngine, make_repository


@pytest.mark.anyio
async def test_resizing_is_left_to_engines_that_all_resize_as_long_as_few_images_are_inside() -> (
    None
):
    engines = FakeEngine(), FakeEngine()
    repository = make_repository(engines[0], others=engines[1:])
    await repository.warm_up()
    (pipeline,) = repository.models.values()
    for able in ((False, False), (True, False), (False, True), (True, True)):
        for engine, resizes in zip(engines, able, strict=True):
            engine.resizes = resizes
        assert pipeline.leaves_resizing == all(able)
    pipeline.admission.add(128)
    assert pipeline.leaves_resizing
    pipeline.admission.add(1)
    assert not pipeline.leaves_resizing
    pipeline.admission.add(-129)
    await repository.close(5)
