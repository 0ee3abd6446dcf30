"""Serves one model, from the bytes of images to scores, with its limits and metrics."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from models import Absent, ChannelOrder, Inner, Kind, Layout, Maps, OutputKind, Serving
from service.engine.lane import Cost, Lane
from service.engine.runner import EngineRunner
from service.engine.supervised_engine import State
from service.hosting.admission import Admission
from service.hosting.recent import Recent
from service.hosting.regions import Regions
from service.images.decode_pool import Coded, DecodePool, Decoding
from service.telemetry.metrics import ModelMetrics

_AS_SET = Serving()
_UNSOUGHT = Absent("none was looked for")

# The most images of a model that wait in memory before they are resized: 0.4 GB at most.
_MOST_UNRESIZED = 128

_LEFT = (Kind.DECODED, Kind.JPEG)

READ = Cost()
"""The cost of any work for a pipeline's reader: one turn of its client, however long the work
takes."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Describes a model, without its weights."""

    name: str
    version: str  # digits
    image_shape: tuple[int, ...]  # H×W×C, the engine's input; of clips D×H×W×C
    scores: str  # the output's name in the model
    output: OutputKind
    labels: Sequence[str]  # empty: clients see class indices alone
    channels: ChannelOrder = ChannelOrder.RGB  # the engine's; clients send RGB, or grey
    tensor: str = ""  # the name of the model's own input; empty: clients cannot send that
    tensor_shape: tuple[int, ...] = ()  # of one image in that input
    layout: Layout = Layout.NCHW  # of its axes
    tensor_type: str = "FP32"  # or FP16, or UINT8: what the file's input holds, in V2's words
    guess: str = ""  # the preset, where nothing chose it
    warning: str = ""  # why its answers are probably wrong
    origin: str = ""  # one line: which file states which facts
    serving: Serving = _AS_SET
    embedding: Inner | Absent = _UNSOUGHT
    maps: Maps | Absent = _UNSOUGHT
    inner: Collection[Inner] = ()  # values inside the network that may be asked for
    meaning: str = ""  # one line: which output has the scores, what they are, and why
    is_multi_label: bool = False  # an image may have several labels, or none
    of_clips: bool = field(init=False)  # it takes clips, D×H×W×C

    def __post_init__(self) -> None:
        object.__setattr__(self, "of_clips", len(self.image_shape) == 4)


@dataclass(frozen=True, slots=True)
class FailedModel:
    """Names a model that could not be opened, and says why; other models are served."""

    name: str
    version: str
    error: str


@dataclass(eq=False, slots=True)
class Pipeline:
    """Combines a model's runner, decoders and limits; used from one event loop."""

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
                "Images inside, from admission to answer.",
                lambda: self.admission.images,
            ),
            "convoy_job_processes": (
                "Other processes that are ready to decode and run batches.",
                lambda: runner.ready_processes,
            ),
        }

    @property
    def left(self) -> Collection[Kind]:
        """Return the kinds of images that the engines may decode or resize next.

        Decoded images are among these kinds only while few images are in progress, because each may
        take 3 MB until it is resized.
        """
        takes = self.runner.takes
        if takes < Kind.DECODED:  # on a CPU, mostly
            return ()
        few = self.admission.images <= _MOST_UNRESIZED
        return [kind for kind in _LEFT if kind <= takes and (few or kind is not Kind.DECODED)]

    async def drain(self, timeout_s: float | None) -> bool:
        """Refuse new requests, and finish the requests in progress. Return False if that takes
        longer than `timeout_s`; None means no limit."""
        self.runner.refuse()
        try:
            async with asyncio.timeout(timeout_s):
                await self.admission.emptied()
        except TimeoutError:
            return False
        return True
