"""Combines the objects that serve one version of a model."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from models import Kind
from service.engine.lane import Cost, Lane
from service.engine.runner import EngineRunner
from service.engine.supervised_engine import State
from service.hosting.admission import Admission
from service.hosting.model_info import ModelInfo
from service.hosting.recent import Recent
from service.hosting.regions import Regions
from service.images.decode_pool import Coded, DecodePool, Decoding
from service.telemetry.metrics import ModelMetrics

# The most images of a model that wait in memory before they are resized: 0.4 GB at most.
_MOST_UNRESIZED = 128

_LEFT = (Kind.DECODED, Kind.JPEG)

READ = Cost()
"""The cost of any work in the `reader` threads. All work costs the same when clients take turns,
however long it takes."""


@dataclass(eq=False, slots=True)
class Pipeline:
    """Holds the engine runner, the decoders, the limits and the metrics of one version of a model.
    Not thread-safe: use it from one event loop."""

    info: ModelInfo
    runner: EngineRunner
    prepare: Callable[[Any], Decoding]  # of bytes; of clips, of Frames too
    admission: Admission
    decoders: DecodePool
    reader: Lane  # of threads that parse long bodies and make long answers
    metrics: ModelMetrics
    regions: Regions | None = None  # of shared memory, if clients may register some
    recent: Recent | None = None  # where a new version may take over
    refusal: str = ""  # why the last new version did not
    coded: Callable[[Any], Coded] = field(init=False)  # of bytes that jobs decode: `Coded.of`
    longest_label: int = field(init=False)  # bytes that a label takes in JSON at most
    labels_json: Any = field(init=False)  # all labels as a msgspec.Raw: encoding many takes long

    def __post_init__(self) -> None:
        most_bytes = self.decoders.quick_bytes
        self.coded = partial(Coded.of, prepare=self.prepare, most_bytes=most_bytes)
        labels = [msgspec.json.encode(label) for label in self.info.labels]
        self.longest_label = max(map(len, labels), default=8)
        self.labels_json = msgspec.Raw(b"[%b]" % b",".join(labels))
        runner = self.runner
        self.metrics.engines = lambda: runner.engines
        self.metrics.pending = lambda: runner.batcher.depth
        self.metrics.gauges |= {
            "convoy_ready": (
                "1 while the model accepts requests.",
                lambda: float(runner.state is State.READY),
            ),
            "convoy_queue_depth": ("Images waiting for a batch.", lambda: runner.batcher.depth),
            "convoy_images_inside": (
                "Images in progress, from admission to answer.",
                lambda: self.admission.images,
            ),
            "convoy_job_processes": (
                "Other processes that are ready to decode and run batches.",
                lambda: runner.ready_processes,
            ),
        }

    @property
    def left(self) -> Collection[Kind]:
        """Return the kinds of images that the engine takes, at the moment, before they are fully
        prepared.

        A GPU's engine can decode JPEG files, and resize decoded images. Decoded images are passed
        to it only while few images are in progress, because each may take 3 MB until it is resized.
        """
        takes = self.runner.takes
        if takes < Kind.DECODED:  # on a CPU, mostly
            return ()
        few = self.admission.images <= _MOST_UNRESIZED
        return [kind for kind in _LEFT if kind <= takes and (few or kind is not Kind.DECODED)]

    async def drain(self, timeout_s: float | None) -> bool:
        """Refuse new requests, and finish the requests in progress. Return False if that takes
        longer than `timeout_s`. None means no limit."""
        self.runner.refuse()
        try:
            async with asyncio.timeout(timeout_s):
                await self.admission.emptied()
        except TimeoutError:
            return False
        return True
