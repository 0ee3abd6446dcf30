"""An engine in its thread: a device that no longer answers, and the engine's time limits."""

import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

from models import BUILT_IN_MODEL, OutputKind, load_classifier
from service.batching.latency import Latency
from service.engine import supervised_engine
from service.engine.supervised_engine import State, SupervisedEngine
from service.engine.watchdog import Bounds
from service.errors import ThreadLostError
from tests.support import PATIENCE_S
from tests.support.kernels.null_device import NullDevice, NullGraph, NullStream
from tests.support.models.engines import opened
from tests.support.service.fakes import FakeEngine

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


async def test_a_batch_is_bound_by_what_warming_up_measured_and_by_nothing_later() -> None:
    engine = SupervisedEngine(
        FakeEngine(max_batch=2),
        (1, 1, 1),
        OutputKind.LOGITS,
        name="the engine",
        on_change=lambda _: None,
        known=Latency((1.0, 1.5)),
        sample=partial(time.sleep, 0.1),
    )
    await engine.warm_up()
    assert engine.decode_s >= 0.1
    bounds = [50 * (1.0 + engine.decode_s), 50 * (1.5 + 2 * engine.decode_s)]
    assert engine._batch_s == pytest.approx(bounds)
    await engine.run([np.zeros((1, 1, 1), np.uint8)])
    assert engine._batch_s == pytest.approx(bounds)
    for closing in engine.close():
        await closing


async def test_running_is_tried_again_if_it_takes_up_to_three_times_as_long_as_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other programs may have had the core. The first image is run to warm up, the next three are
    timed."""
    now, runs = 0.0, iter([0.1, *[0.025] * 3, *[0.009] * 6])
    monkeypatch.setattr(supervised_engine, "perf_counter", lambda: now)

    class Slow(FakeEngine):
        @override
        def run(self, images: Any, inner: Any = ()) -> Any:
            nonlocal now
            now += next(runs)
            return super().run(images, inner)

    def decode() -> None:
        nonlocal now
        now += 0.01

    engine = SupervisedEngine(
        Slow(max_batch=2),
        (1, 1, 1),
        OutputKind.LOGITS,
        name="the engine",
        on_change=lambda _: None,
        known=Latency((1.0, 1.5)),
        sample=decode,
    )
    await engine.warm_up()
    assert engine.decode_s == pytest.approx(0.01)
    assert engine.run_s == pytest.approx(0.009)
    for closing in engine.close():
        await closing
