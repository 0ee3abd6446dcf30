"""An engine in its thread, on a device that stops answering."""

import threading

import numpy as np
import pytest

from benchmarks.networks.null_device import NullDevice, NullGraph, NullStream
from models import BUILT_IN_MODEL, load_classifier
from service.engine.engine_thread import EngineThread
from service.errors import ThreadLostError
from tests.support.models.engines import opened

pytestmark = pytest.mark.anyio


async def test_a_replay_that_never_signals_is_caught_by_the_watchdog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    p = digits.preprocessing
    engine = EngineThread(opened(digits, NullDevice()), p.image_shape, p.output)
    images, ended = np.zeros((1, *p.image_shape), np.uint8), threading.Event()
    assert len(await engine.run(images, bound_s=10)) == 1
    monkeypatch.setattr(NullGraph, "replay", lambda *_: None)
    monkeypatch.setattr(NullStream, "synchronize", lambda _: ended.wait(60))
    with pytest.raises(ThreadLostError, match="stuck"):
        await engine.run(images, bound_s=0.2)
    ended.set()
    monkeypatch.undo()
    await engine.close()
