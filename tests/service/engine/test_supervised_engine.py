"""An engine in its thread, on a device that stops answering."""

import threading

import numpy as np
import pytest

from benchmarks.networks.null_device import NullDevice, NullGraph, NullStream
from models import BUILT_IN_MODEL, load_classifier
from service.engine.supervised_engine import State, SupervisedEngine
from service.engine.watchdog import Bounds
from service.errors import ThreadLostError
from tests.support import PATIENCE_S
from tests.support.models.engines import opened

pytestmark = pytest.mark.anyio


async def test_a_replay_that_never_signals_is_caught_by_the_watchdog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digits = load_classifier(BUILT_IN_MODEL)
    p = digits.preprocessing
    opened_engine = opened(digits, NullDevice())
    engine = SupervisedEngine(
        opened_engine,
        p.image_shape,
        p.output,
        name="the engine",
        on_change=lambda _: None,
        bounds=Bounds(batch_s=PATIENCE_S),
    )
    await engine.warm_up()
    images, ended = [np.zeros(p.image_shape, np.uint8)], threading.Event()
    assert len(await engine.run(images)) == 1
    engine._batch_s = [1.0]
    monkeypatch.setattr(NullGraph, "replay", lambda *_: None)
    monkeypatch.setattr(NullStream, "synchronize", lambda _: ended.wait(PATIENCE_S))
    with pytest.raises(ThreadLostError, match="stuck"):
        await engine.run(images)
    assert engine.state is State.FAILED
    ended.set()
    monkeypatch.undo()
    for closing in engine.close():
        await closing
