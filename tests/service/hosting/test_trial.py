"""A version is tested in another process. The engine that serves it later has the same scores as in
the test."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from models import BUILT_IN_MODEL, DeviceChoice, DeviceKind, ModelFileError
from service.engine.process_pool import ProcessPool
from service.errors import NotTriedError
from service.hosting import kept, trial
from service.hosting.finding import ModelFile, find_models
from service.hosting.loading import OpenModel, open_read
from service.hosting.reading import read_file
from service.hosting.trial import Trial, prepared, try_file
from service.settings import Settings
from tests.support.images.files import encode, scene


@pytest.fixture(autouse=True)
def nothing_is_kept_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FOLDER", tmp_path / "served")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    place = tmp_path / "models" / "digits"
    place.mkdir(parents=True)
    shutil.copy(BUILT_IN_MODEL, place / "model.onnx")
    shutil.copy(BUILT_IN_MODEL.with_suffix(".toml"), place / "model.toml")
    shutil.copy(BUILT_IN_MODEL.with_name("labels.txt"), place)
    return Settings(
        model=tmp_path / "models",
        device=DeviceKind.CPU,
        threads=2,
        max_batch=4,
        repository_api=True,
    )


def file_of(settings: Settings) -> ModelFile:
    (file,) = find_models(settings)
    return file


def open_file(file: ModelFile, settings: Settings) -> OpenModel:
    return open_read(read_file(file, settings, None), file, settings, None)


def images_of(opened: OpenModel, n: int) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    generator = np.random.default_rng(7)
    return generator.integers(0, 256, (n, *opened.info.image_shape)).astype(np.uint8)


def test_the_engine_that_serves_has_the_scores_that_were_shown(settings: Settings) -> None:
    file = file_of(settings)
    old = open_file(file, settings)
    pixels = images_of(old, 3)
    photograph = encode(scene(300, 200), "PNG")
    processes = ProcessPool(NotTriedError)
    found: Trial = processes.run(
        partial(try_file, file, settings, None, old.info, [*pixels, photograph, b"no image"])
    )
    processes.close()
    assert found.scores is not None
    *rows, of_photograph, of_none = found.scores
    of_pixels = np.stack([row for row in rows if row is not None])
    assert of_none is None
    assert found.latency is not None
    assert found.latency.max_batch == 4
    assert found.read.info == old.info
    opened = open_read(found.read, file, settings, None)
    (engine,) = opened.engines
    assert engine.warm_up() is engine
    assert engine.max_batch == 4
    np.testing.assert_allclose(engine.run(pixels).scores, of_pixels, rtol=1e-4, atol=1e-5)
    assert of_photograph is not None
    assert of_photograph.shape == (10,)
    again = opened.reopen(0).warm_up()
    np.testing.assert_allclose(again.run(pixels).scores, of_pixels, rtol=1e-4, atol=1e-5)
    for each in (engine, again, *old.engines):
        each.close()


def test_engines_beside_each_other_share_what_was_shown(settings: Settings) -> None:
    two = settings.model_copy(update={"devices": "cpu:2", "device": DeviceKind.AUTO})
    found = try_file(file_of(two), two, None, None, [])
    opened = open_read(found.read, file_of(two), two, None)
    image = images_of(opened, 1)
    one, other = (engine.warm_up().run(image).scores for engine in opened.engines)
    assert np.array_equal(one, other)


def test_what_fails_there_fails_here_in_the_same_words(settings: Settings) -> None:
    file = file_of(settings)
    file.path.write_bytes(b"this is no model")
    processes = ProcessPool(NotTriedError)
    with pytest.raises(ModelFileError, match="is not an ONNX model, or is truncated"):
        processes.run(partial(try_file, file, settings, None, None, []))
    processes.close()


def test_what_is_for_a_gpu_is_only_read_there(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(settings)
    on_gpu = settings.model_copy(update={"device": DeviceKind.CUDA})
    monkeypatch.setattr(trial, "_measured", lambda *_: pytest.fail("the CPU was asked"))
    found = try_file(file, on_gpu, None, None, [])
    assert (found.latency, found.scores) == (None, None)
    # Where a GPU may be, that is what opens it; here the CPU stands for that.
    (engine,) = found.read.open([DeviceChoice(DeviceKind.CPU)])
    engine.close()


def test_a_served_version_is_opened_again_whatever_its_files_are_now(settings: Settings) -> None:
    file = file_of(settings)
    opened = open_file(file, settings)
    expected = opened.engines[0].warm_up().run(images_of(opened, 1)).scores
    file.path.write_bytes(b"a new version, which is refused")
    again = opened.reopen(0).warm_up()
    assert np.array_equal(again.run(images_of(opened, 1)).scores, expected)
    file.path.unlink()
    opened.reopen(0).close()


def test_an_image_is_taken_as_the_new_version_takes_it(settings: Settings) -> None:
    info = open_file(file_of(settings), settings).info

    def prepare(_: object) -> object:
        raise AssertionError

    pixels = np.zeros(info.image_shape, np.uint8)
    tensor = np.zeros(info.tensor_shape, np.float32)
    take = partial(prepared, prepare=prepare)  # type: ignore[arg-type]
    larger = replace(info, image_shape=(64, 64, 1), tensor_shape=(1, 64, 64))
    for image in (pixels, tensor):
        assert take(info, info, image=image) is image
        assert take(info, larger, image=image) is None
