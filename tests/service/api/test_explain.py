"""`?explain=` with a fake engine for grey images of one pixel. Each digit has 25 grey levels."""

import base64
import io
import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from PIL import Image

from models import Absent, Batch, Inner, Maps, Results
from models.preprocessing import PRESETS
from service.api.app import create_app
from service.hosting.repository import Repository
from service.images.prepare import ImageLimits, prepare_image
from tests.support import PATIENCE_S
from tests.support.images.files import encode, exif
from tests.support.service.client import PATH, AppClient, error_of
from tests.support.service.fakes import CLASSES, LABELS, FakeEngine, fake_info

pytestmark = pytest.mark.anyio

FEATURES = Inner("features", (2, 2, 3))

# Each class weighs the first feature by its number.
MAPS = Maps(
    features=FEATURES,
    weight=np.stack([np.arange(CLASSES), np.ones(CLASSES)], 1).astype(np.float32),
    inside=np.zeros(CLASSES, np.float32),
    rectified=False,
    beside=np.linspace(0, 2.25, CLASSES, dtype=np.float32),
)

FIRST = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


class MappedEngine(FakeEngine):
    """An engine whose inner values have two channels: FIRST, and the image's digit."""

    def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
        """Return the score of the digit that the pixel's grey level means."""
        levels = [int(np.asarray(image)[0, 0, 0]) // 25 for image in images]
        digits = np.array(levels, np.uint8).reshape(-1, 1, 1, 1)
        results = super().run(digits, inner)
        features = np.stack([np.stack([FIRST, np.full((2, 3), level)]) for level in levels])
        return results._replace(inner=dict.fromkeys(inner, features.astype(np.float32)))


def photo(digit: int, size: tuple[int, int] = (60, 20), orientation: int = 1) -> bytes:
    return encode(Image.new("L", size, 25 * digit + 5), "PNG", exif=exif(orientation))


@asynccontextmanager
async def served(
    maps: Maps | Absent = MAPS, engine: FakeEngine | None = None, **changes: Any
) -> AsyncIterator[AppClient]:
    repository = Repository(max_batch=8, max_queue=32, max_body_bytes=100_000, decode_threads=2)
    info = replace(fake_info(), maps=maps, inner=[FEATURES], **changes)
    preprocessing = PRESETS["digits"].at(1, 1)
    prepare = partial(prepare_image, preprocessing=preprocessing, limits=ImageLimits())
    repository.add(info, [engine or MappedEngine()], prepare, None)
    await repository.warm_up()
    async with AppClient(create_app(repository)) as client:
        yield client
    await repository.close(PATIENCE_S)


async def test_the_likeliest_class_and_others_are_explained_in_the_images_coordinates() -> None:
    async with served() as client:
        answer = await client.post(f"{PATH}?explain=1&explain={LABELS[3]}", content=photo(7))
        turned = await client.post(f"{PATH}?explain=class:2&top_k=2", content=photo(5, (60, 20), 6))
        plain = await client.post(PATH, content=photo(7))
    assert answer.status_code == 200, answer.text
    (result,) = answer.json()["results"]
    likeliest, third = result["maps"]
    assert (likeliest["index"], likeliest["label"]) == (7, LABELS[7])
    assert likeliest["values"] == (7 * FIRST + 7).tolist()
    assert (third["index"], third["values"]) == (3, (3 * FIRST + 7).tolist())
    assert third["bias"] == 0.75
    assert (third["size"], third["box"]) == ([60, 20], [20, 0, 40, 20])
    (result,) = turned.json()["results"]
    (second,) = result["maps"]
    assert (second["size"], second["box"]) == ([20, 60], [0, 20, 20, 40])
    assert len(result["predictions"]) == 2
    assert "maps" not in plain.json()["results"][0]


async def test_each_image_of_a_form_has_its_maps() -> None:
    form = [("file", (f"{digit}.png", photo(digit))) for digit in (3, 1, 4)]
    async with served() as client:
        answer = await client.post(f"{PATH}?explain=1", files=form)
        maps = [result["maps"][0] for result in answer.json()["results"]]
        assert [each["index"] for each in maps] == [3, 1, 4]
        assert [each["values"][0][0] for each in maps] == [6, 2, 8]
        many = await client.post(f"{PATH}?explain=1", files=[*form, *form, *form])
        assert "asks for 9 maps, one per image and class; at most 8" in error_of(many, 422)


async def test_maps_of_many_features_are_short_answers() -> None:
    """A map has one number per position, however many channels it is computed from."""
    wide = Inner("features", (400, 20, 20))

    class WideEngine(FakeEngine):
        def run(self, images: Batch, inner: Collection[str] = ()) -> Results:
            results = super().run(np.ones((len(images), 1, 1, 1), np.uint8), inner)
            features = np.ones((len(images), *wide.shape), np.float32)
            return results._replace(inner=dict.fromkeys(inner, features))

    maps = replace(MAPS, features=wide, weight=np.ones((CLASSES, 400), np.float32))
    query = "&".join(f"explain=class:{index}" for index in range(8))
    async with served(maps, WideEngine()) as client:
        answer = await client.post(f"{PATH}?{query}", content=photo(7))
        assert answer.status_code == 200, answer.text
        found = answer.json()["results"][0]["maps"]
    assert [each["values"] for each in found] == [[[400] * 20] * 20] * 8


async def test_a_map_comes_as_a_png_to_lay_over_the_image() -> None:
    async with served() as client:
        answer = await client.post(f"{PATH}?explain=1&explain_as=overlay", content=photo(7))
    (found,) = answer.json()["results"][0]["maps"]
    assert "values" not in found
    kind, _, data = found["overlay"].partition(",")
    assert kind == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert image.size == (60, 20)
        opacity = np.asarray(image)[:, :, 3]
    assert not opacity[:, :20].any()
    assert opacity[15, 38] > 150  # FIRST's largest value


async def test_an_embedding_and_a_map_of_one_batch_do_not_disturb_each_other() -> None:
    async with served() as client:
        maps = await client.post(f"{PATH}?explain=class:0", content=photo(7))
        assert maps.json()["results"][0]["maps"][0]["values"] == [[7] * 3] * 2
        answer = await client.post("/v1/embeddings", content=photo(7))
        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("explain=cat", "no class is labelled 'cat'; explain must be 1 for the likeliest class"),
        ("explain=", "no class is labelled ''"),
        ("explain=class:10", "a whole number below 10; got '10'"),
        ("explain=class:-1", "a whole number below 10; got '-1'"),
        ("explain=class:%C2%B2", "a whole number below 10"),
        ("explain=1&explain_as=svg", "explain_as must be numbers or overlay; got 'svg'"),
        ("explain_as=overlay", "explain_as needs explain, such as explain=1"),
        (
            "explained=1",
            "unknown parameter 'explained'; the parameters are top_k, threshold, explain and",
        ),
    ],
)
async def test_a_wrong_query_is_told_what_is_right(query: str, says: str) -> None:
    async with served() as client:
        assert says in error_of(await client.post(f"{PATH}?{query}", content=photo(7)), 422)


async def test_a_label_of_two_classes_is_asked_for_by_number() -> None:
    labels = [*LABELS[:8], "crane", "crane"]
    async with served(labels=labels) as client:
        says = error_of(await client.post(f"{PATH}?explain=crane", content=photo(7)), 422)
        assert says == (
            "2 classes are labelled 'crane'; to choose one of them, send explain=class:8 or class:9"
        )
    async with served(labels=["crane"] * len(LABELS)) as client:
        says = error_of(await client.post(f"{PATH}?explain=crane", content=photo(7)), 422)
        assert says.startswith("10 classes are labelled 'crane'")
        assert says.endswith("class:6 or class:7")


async def test_a_model_without_maps_says_why() -> None:
    async with served(Absent("it is made up")) as client:
        says = error_of(await client.post(f"{PATH}?explain=1", content=photo(7)), 422)
        assert says == "the model 'fake' has no maps: it is made up"


async def test_a_map_that_is_not_finite_is_no_answer() -> None:
    broken = replace(MAPS, weight=MAPS.weight * np.nan)
    async with served(broken) as client:
        says = error_of(await client.post(f"{PATH}?explain=1", content=photo(7)), 500)
        assert "not finite" in says
        assert json.loads((await client.post(PATH, content=photo(7))).text)["results"]
