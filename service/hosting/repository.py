"""Holds the models that one process serves.

Each model has its own engines with their threads, its own batcher and its own limit on images. All
models share the devices, the decode threads, the memory for bodies, and the metrics. On a shared
device, the engines of different models take turns.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import partial
from heapq import nlargest
from operator import itemgetter
from typing import Any, Protocol

from typing_extensions import TypedDict

from models import DeviceLostError, Engine, EngineError
from service.batching.company import Company
from service.batching.device_turns import DeviceTurns
from service.batching.latency import Latency
from service.engine.job_processes import JobParent, JobProcesses
from service.engine.lane import Lane
from service.engine.process_pool import ProcessPool
from service.engine.runner import Elsewhere, EngineRunner
from service.engine.supervised_engine import State
from service.engine.threads import ThreadPool
from service.engine.watchdog import Bounds
from service.errors import BrokenModelError, DecoderLostError, ModelNotFoundError, ShuttingDownError
from service.fair_queue import Client
from service.folders import without_folders
from service.hosting.admission import Admission, ByteRoom
from service.hosting.model_info import FailedModel, ModelInfo
from service.hosting.pipeline import READ, Pipeline
from service.hosting.recent import Recent
from service.hosting.regions import Regions
from service.images.decode_pool import Coded, DecodePool, Decoding, in_process
from service.machine.memory import (
    MemoryPressure,
    Slack,
    give_back_free_memory,
    give_back_garbage,
)
from service.telemetry.metrics import Metrics, ModelMetrics

# Bodies have room for the largest body, and for this many bytes per image that may wait.
_BYTES_AN_IMAGE = 2**20

# Seconds for which warm-up times each model's batches of every size.
_MEASURE_S = 1.0

# Time limits for decoding and for metrics. The largest images take a second or two to decode; GPU
# drivers may answer slowly.
_DECODE_S = 60.0
_TELL_S = 10.0

# The pause between two texts of metrics, as a multiple of the first one's creation time, and its
# limit.
_TELL_PAUSES, _MOST_PAUSE_S = 4, 1.0

# Seconds between two checks whether to give memory back.
_GIVE_BACK_S = 0.5

# Seconds in which the engine of a model that is no longer served must return from its last call.
_RETIRE_S = 60.0

# Decode threads yield to the engine and the event loop: on shared cores, finishing a batch is worth
# more than decoding one more image.
_DECODE_NICE = 5

# For a message that names models: the most models that it names, the most that are considered as
# similar to an unknown name, the most characters of this name, and the least similarity.
_SHOWN, _MOST_CONSIDERED, _SHOWN_NAME, _NEAR = 8, 64, 50, 0.6

# Names of 50 characters take difflib up to a millisecond each. So few names are compared, and only
# where they differ: the most names, and the most characters.
_MOST_COMPARED, _MOST_DIFFERENT = 4, 24

_log = logging.getLogger("convoy")


def _shrink(processes: ProcessPool) -> None:
    processes.end_idle()
    give_back_garbage()


def _decode(prepare: Callable[[Any], Decoding], file: bytes) -> None:
    prepare(file).run()


def nearest(wanted: str, names: Iterable[str], least: float) -> str | None:
    """Return the most similar name, or None if no similarity is at least `least`. The similarity is
    difflib's ratio, from 0 to 1."""
    differing = []
    for name in names:
        first = _same(wanted, name)
        rest, other = wanted[first:], name[first:]
        last = _same(rest[::-1], other[::-1])
        rest, other = rest[: len(rest) - last], other[: len(other) - last]
        if max(len(rest), len(other)) <= _MOST_DIFFERENT:
            differing.append((first + last, name, rest, other))
    near = None
    for same, name, rest, other in nlargest(_MOST_COMPARED, differing, itemgetter(0)):
        blocks = SequenceMatcher(None, rest, other).get_matching_blocks()
        ratio = 2 * (same + sum(block.size for block in blocks)) / (len(wanted) + len(name))
        if ratio >= least:
            near, least = name, ratio
    return near


def _same(one: str, other: str) -> int:
    """Return the number of characters with which both texts begin."""
    count = 0
    for count, (mine, others) in enumerate(zip(one, other, strict=False), 1):
        if mine != others:
            return count - 1
    return count


def those_there_are(name: str, names: Sequence[str]) -> str:
    """Return the end of an error message about an unknown model name. The text suggests a similar
    name, if there is one, and lists the first names that exist."""
    near = nearest(name[:_SHOWN_NAME], names[:_MOST_CONSIDERED], _NEAR)
    also = f"did you mean '{near}'? " if near else ""
    more = len(names) - _SHOWN
    listed = ", ".join(names[:_SHOWN]) + (f" and {more} others" if more > 0 else "")
    return f"{also}this server's models: {listed or 'none'}"


class LoadResult(TypedDict):
    """Describes a loaded model: its served version, and how much its answers differ from the
    previous version's answers."""

    name: str
    version: str
    images: int  # compared
    agreement: float | None  # None: there were no images
    largest_change: float | None


class Changes(Protocol):
    """Loads, replaces and unloads models while the server runs."""

    by_clients: bool
    """Whether clients may ask for changes."""

    async def load(self, name: str) -> LoadResult:
        """Load a model from its current files and serve it. Do nothing if the files have not
        changed.

        Raises ModelNotFoundError if the model has no files, and RetryableError if models may not
        change now. Raises NotLoadedError if the new version cannot be served, or if its answers
        differ too much from the old version's. The old version is then still served. If the caller
        is cancelled, the load continues.
        """

    async def unload(self, name: str) -> None:
        """Stop serving a model. Its requests in progress are still answered. Raises
        ModelNotFoundError."""

    def start(self) -> None:
        """Begin to accept loads and unloads, because the models have been warmed up."""

    def stop(self) -> None:
        """Accept no more loads and unloads, because the server is shutting down."""


class Repository:
    """Holds models by name, in the order in which they were added. Not thread-safe: use it from one
    event loop."""

    def __init__(
        self,
        *,
        max_batch: int,
        max_queue: int,
        max_body_bytes: int,
        max_pixels: int = 25_000_000,
        decode_threads: int,
        decode_bytes: int = 2**30,
        sample: bytes | None = None,
        default: str | None = None,
        strict: bool = False,
        measure_s: float = _MEASURE_S,
        bounds: Bounds | None = None,
        decode_s: float = _DECODE_S,
        shared_memory: bool = False,
        swaps: bool = False,
        parent: JobParent | None = None,
        processes: int = 0,
    ) -> None:
        """All models share the limits on bytes and decode threads. The other limits apply to each
        model.

        `max_queue` is in images. `sample` is an image file. If decoding it takes at least as long
        as running it on a CPU, the model's engine also decodes images. `parent` then forks up to
        `processes` job processes for the model. `default` names the model of `/v1/classify`. With
        `strict`, warming up raises the first error of any model. Without it, warming up raises an
        error only if no model can be served. Warming up measures batches for `measure_s` seconds.
        `bounds` has the engines' time limits, and `decode_s` is the time limit for decoding one
        image. With `swaps`, recent images are kept, to compare versions of a model.
        """
        self.max_body_bytes, self.max_pixels = max_body_bytes, max_pixels
        self.regions = Regions(max_body_bytes) if shared_memory else None
        self.metrics = Metrics(max_batch=max_batch)
        self.models: dict[str, Pipeline] = {}
        self.broken: dict[str, FailedModel] = {}  # those that could not be opened
        self.unloaded: dict[str, str] = {}  # the versions of those that were served before
        self.changes: Changes | None = None
        self.on_change: list[Callable[[Pipeline | None, Pipeline | None], None]] = []
        self._aside: set[Pipeline] = set()  # not yet served, or not any more
        self._default, self._strict, self._swaps = default, strict, swaps
        self._max_queue = max_queue
        self.company = Company()
        self.room = ByteRoom(max_body_bytes + max_queue * _BYTES_AN_IMAGE)
        self.room.pressure = MemoryPressure(on_short=self._give_back)
        # Returns the bytes received since the last call that the room does not count.
        self.taken_elsewhere: Callable[[], int] = int
        pace: Any = {"bound_s": decode_s, "nice": _DECODE_NICE}
        self._processes = ProcessPool(DecoderLostError, decode_s)
        self._decoders = DecodePool(
            decode_threads, decode_bytes, **pace, apart=in_process(self._processes)
        )
        # One client uses one thread: parsing holds the GIL, so a second thread would gain nothing.
        # Another client's body is read in the other thread at the same time.
        readers = min(2, decode_threads)
        self._reader = Lane(ThreadPool("read", readers, **pace), readers, shared=True)
        self._decoders.jobs = lambda: sum(p.runner.decoding_jobs for p in self._every)
        self.metrics.lost_decode_threads = self._lost_decode_threads
        self._sample = sample
        self._parent, self._most_processes = parent, processes if parent is not None else 0
        self._teller = ThreadPool("metrics", 1, bound_s=_TELL_S)
        self._told: asyncio.Future[bytes] | None = None  # metrics that are made, or were last
        self._next_told: asyncio.Future[bytes] | None = None  # that will be
        self._tell_at = 0.0  # loop time
        # For each engine number, the turns of all models' engines with this number.
        self._turns: defaultdict[int, DeviceTurns] = defaultdict(DeviceTurns)
        self._measure_s = measure_s
        self._bounds = bounds
        self._leaving = False
        self._failed = asyncio.Event()
        self._failure: EngineError | None = None

    def add(
        self,
        info: ModelInfo,
        engines: Sequence[Engine],
        prepare: Callable[[Any], Decoding],
        reopen: Callable[[int], Engine] | None = None,
    ) -> Pipeline:
        """Add a model and serve it. `reopen` takes the number of an engine and returns a new engine
        that replaces it."""
        if info.name in self.models:
            raise ValueError(f"two models are named {info.name!r}")
        pipeline = self.open_aside(info, engines, prepare, reopen)
        self.install(pipeline)
        return pipeline

    def open_aside(
        self,
        info: ModelInfo,
        engines: Sequence[Engine],
        prepare: Callable[[bytes], Decoding],
        reopen: Callable[[int], Engine] | None = None,
        measure_s: float | None = None,
        known: Latency | None = None,
    ) -> Pipeline:
        """Open a model, but do not serve it yet. Call `install` to serve it, or `discard` to close
        it.

        `measure_s` is the time for measuring batches, if it differs from the repository's. `known`
        has the time of each batch size, or is None if the times must be measured.
        """
        metrics = self.metrics.beside(info.name, info.version)
        runner = EngineRunner(
            engines,
            info.image_shape,
            info.output,
            turns=[self._turns[number] for number in range(len(engines))],
            on_batch=metrics.counts.batch,
            company=self.company,
            measure_s=self._measure_s if measure_s is None else measure_s,
            known=known,
            sample=None
            if self._sample is None or info.of_clips
            else partial(_decode, prepare, self._sample),
            bounds=self._bounds,
            reopen=reopen,
            elsewhere=Elsewhere(
                partial(self._jobs_of, prepare),
                # Two batches for each process, but one for the last process. The first batch is the
                # engine's own.
                [self._turns[number] for number in range(1, 2 * self._most_processes - 1)],
            ),
            on_failure=self._fail,
        )
        pipeline = self._pipeline(info, runner, prepare, metrics)
        self._aside.add(pipeline)
        return pipeline

    def _jobs_of(self, prepare: Callable[[bytes], Decoding], engine: Engine) -> JobProcesses | None:
        """Return the job processes that can run an engine's batches. Return None if only the
        server's own process can run them."""
        from models import elsewhere  # noqa: PLC0415  with the library that the engine has brought

        opened = elsewhere(engine)
        if self._parent is None or opened is None:
            return None
        coded = partial(Coded, prepare=prepare, most_bytes=self._decoders.quick_bytes)
        return JobProcesses(self._parent, (opened, coded), self._most_processes)

    def install(self, new: Pipeline) -> None:
        """Serve a model from now on, in place of its old version if there is one."""
        name = new.info.name
        old = self.models.get(name)
        shown = next((model for model in self.metrics.models if model.name == name), None)
        self.metrics.replace(shown, new.metrics)
        self.broken.pop(name, None)
        self.unloaded.pop(name, None)
        self._aside.discard(new)
        self.models[name] = new
        self._change(old, new)

    def remove(self, name: str) -> Pipeline | None:
        """Stop serving a model. Return the model, or None if it was listed as broken. Raises
        ModelNotFoundError."""
        if (broken := self.broken.pop(name, None)) is not None:
            old, version = None, broken.version
        else:
            old = self.find(name)
            version = self.models.pop(name).info.version
        self.unloaded[name] = version
        self.metrics.replace(next(m for m in self.metrics.models if m.name == name), None)
        self._change(old, None)
        return old

    async def retire(self, old: Pipeline) -> None:
        """Finish the requests of a model that is no longer served, then close the model."""
        self._aside.add(old)
        await old.drain(None)
        await self.discard(old)

    async def discard(self, pipeline: Pipeline) -> None:
        """Close a model that is not served."""
        if not await pipeline.runner.close(_RETIRE_S):
            info = pipeline.info
            _log.error("an engine of version %s of %s is stuck", info.version, info.name)
        self._aside.discard(pipeline)
        pipeline.metrics.forget()

    def keep_default(self) -> None:
        """Keep the current default model, even if more models are added."""
        default = self.default
        if default is not None:
            self._default = default.info.name

    def _change(self, old: Pipeline | None, new: Pipeline | None) -> None:
        for tell in self.on_change:
            tell(old, new)

    @property
    def _every(self) -> "Iterator[Pipeline]":
        """Return all models with engines, whether or not they are served."""
        yield from self.models.values()
        yield from tuple(self._aside)

    def _pipeline(
        self,
        info: ModelInfo,
        runner: EngineRunner,
        prepare: Callable[[bytes], Decoding],
        metrics: ModelMetrics,
    ) -> Pipeline:
        max_queue, wait_s = self._max_queue, runner.batcher.expected_wait_s
        admission = Admission(
            max_queue + runner.max_batch, max_queue, self.max_body_bytes, self.room, wait_s
        )
        pools = self._decoders, self._reader
        recent = Recent() if self._swaps else None
        return Pipeline(info, runner, prepare, admission, *pools, metrics, self.regions, recent)

    def add_broken(self, broken: FailedModel) -> None:
        """List a model that could not be opened. Requests for this model are refused."""
        self.broken[broken.name] = broken
        ready = "1 while the model accepts requests.", float
        self.metrics.model(broken.name, broken.version).gauges["convoy_ready"] = ready

    @property
    def default(self) -> Pipeline | None:
        """Return the model for requests that name no model: the configured default or the only
        model.

        Returns None if there is no such model, or if it could not be opened. `find_default` then
        raises an error.
        """
        if self._default is not None:
            return self.models.get(self._default)
        alone = len(self.models) + len(self.broken) == 1
        return next(iter(self.models.values()), None) if alone else None

    def find_default(self, path_of: Callable[[str], str]) -> Pipeline:
        """Return the default model. Raises BrokenModelError if it could not be opened. If there is
        no default model, raises ModelNotFoundError with the path of each model."""
        if (default := self.default) is not None:
            return default
        only = next(iter(self.broken)) if not self.models and len(self.broken) == 1 else None
        if (name := self._default or only) is not None:
            return self.find(name)
        paths = ", ".join(map(path_of, self.models))
        instead = f"POST to one of {paths}" if paths else "the server has no model"
        raise ModelNotFoundError(f"there is no default model; {instead}")

    def find(self, name: str, version: str | None = None) -> Pipeline:
        """Return a model by name. Raises ModelNotFoundError with a message worded like Triton's, or
        BrokenModelError."""
        if (broken := self.broken.get(name)) and version in (None, broken.version):
            raise BrokenModelError(f"the model {name} could not be opened: {broken.error}")
        pipeline = self.models.get(name)
        if pipeline is None or version not in (None, pipeline.info.version):
            raise ModelNotFoundError(f"Request for unknown model: {self._not_found(name, version)}")
        return pipeline

    def _not_found(self, name: str, version: str | None) -> str:
        """Return the end of an error message about a model or version that is not served."""
        if known := self.models.get(name):
            served = known.info.version
            return f"'{name}' version {version} is not found; the served version is {served}"
        others = those_there_are(name, [*self.models, *self.broken])
        return f"'{name[:_SHOWN_NAME]}' is not found; {others}"

    @property
    def requests(self) -> int:
        """Return how many requests are in progress."""
        return sum(pipeline.admission.requests for pipeline in self._every)

    @property
    def waiting(self) -> int:
        """Return how many images wait for a batch."""
        return sum(pipeline.runner.batcher.depth for pipeline in self.models.values())

    @property
    def ready(self) -> bool:
        """Return whether all models accept requests. Broken models do not count."""
        states = {pipeline.runner.state for pipeline in self.models.values()}
        return states <= {State.READY, State.BROKEN}

    def check_ready(self) -> None:
        """Raise NotReadyError if a model is not ready, and ShuttingDownError if the server is about
        to end."""
        if self._leaving:
            raise ShuttingDownError("the server is about to shut down; use another server")
        for pipeline in self.models.values():
            if pipeline.runner.state is not State.BROKEN:
                pipeline.runner.check_ready()

    def leave(self) -> None:
        """Report from now on that the server is not ready, but continue to accept requests."""
        self._leaving = True

    def exposition(self) -> "asyncio.Future[bytes]":
        """Return all metrics in Prometheus' text format. A thread collects them, because drivers
        may be slow.

        Calls that come while a text is being created share the next text. Creating a text holds the
        GIL most of the time, which delays requests. So the next text is created only after a pause,
        which is several times as long as creating the last text took.
        """
        if self._next_told is None:
            self._next_told = asyncio.ensure_future(self._tell(self._told))
        return asyncio.shield(self._next_told)

    async def _tell(self, before: "asyncio.Future[bytes] | None") -> bytes:
        if before is not None and not before.done():
            await asyncio.wait([before])
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._tell_at - loop.time()))
        self._told, self._next_told = self._next_told, None
        began = loop.time()
        try:
            return await self._teller.run(Metrics.exposition, self.metrics)
        finally:
            ended = loop.time()
            self._tell_at = ended + min(_TELL_PAUSES * (ended - began), _MOST_PAUSE_S)

    def busy_gpus(self) -> "asyncio.Future[list[float]]":
        """Return the utilization of each GPU, from 0 to 1. A thread reads it, because drivers may
        be slow."""
        return self._teller.run(Metrics.busy_gpus, self.metrics)

    async def warm_up(self) -> None:
        """Warm up every engine, one after another.

        Raises EngineError if every model fails, if any model fails and `strict` is set, or if the
        device is lost. Otherwise a model that fails becomes BROKEN, and the reason is logged.
        """
        failed = []
        for name, pipeline in self.models.items():
            try:
                await pipeline.runner.warm_up()
            except EngineError as error:
                if len(self.models) == 1 or isinstance(error, DeviceLostError):
                    raise
                failed.append(f"{name}: {error}")
                if self._strict or len(failed) == len(self.models):
                    raise EngineError("\n".join(failed)) from error
                _log.error("the model %s is not served: %s", name, error)
                pipeline.runner.state = State.BROKEN
                pipeline.runner.failure = without_folders(str(error))
        if self.changes is not None:
            self.changes.start()

    async def failure(self) -> EngineError:
        """Wait until an engine has failed permanently, and return its last error."""
        await self._failed.wait()
        assert self._failure is not None  # noqa: S101  set before the event; narrows the type
        return self._failure

    async def drain(self, timeout_s: float) -> bool:
        """Refuse new requests, and finish the requests in progress. Return False if that takes
        longer than `timeout_s`."""
        self._stop_changing()
        for pipeline in self._every:
            pipeline.runner.refuse()  # at once
        drained = await asyncio.gather(*(p.drain(timeout_s) for p in self._every))
        return all(drained)

    async def give_up(self) -> None:
        """Fail all requests in progress with ShuttingDownError."""
        await asyncio.gather(*(pipeline.runner.give_up() for pipeline in self._every))

    async def close(self, timeout_s: float) -> bool:
        """Close everything, and fail the requests in progress. Return False if an engine is
        stuck."""
        self._stop_changing()
        closed = await asyncio.gather(*(p.runner.close(timeout_s) for p in self._every))
        self._decoders.close()
        self._processes.close()
        self._reader.pool.close()
        self._teller.close()
        return all(closed)

    def _stop_changing(self) -> None:
        if self.changes is not None:
            self.changes.stop()

    def _lost_decode_threads(self) -> int:
        jobs = sum(pipeline.runner.lost_to_decoders for pipeline in self._every)
        return self._decoders.lost + self._reader.pool.lost + jobs

    def _give_back(self) -> None:
        """Free memory because it is short: drop the recent images, end idle processes, and return
        free memory to the system."""
        _log.warning("memory is short: new images are refused until more memory is free")
        for pipeline in self._every:
            if pipeline.recent is not None:
                pipeline.recent = Recent()
        self._teller.post(_shrink, self._processes, lambda _, __: None)

    async def read_aside(self, read: Callable[[], bytes], client: Client) -> bytes:
        """Run `read`, which may take long, in a thread, and return its result. Clients take turns
        to use the threads. Raises the errors of `read`."""
        return await self._reader.run(READ, read, client)

    async def give_back_periodically(self) -> None:
        """Return free memory to the system, soon after the server has used much memory. Runs until
        it is cancelled."""
        slack = Slack()
        while True:
            await asyncio.sleep(_GIVE_BACK_S)
            if slack.is_worth_it(self.room.most_taken() + self.taken_elsewhere()):
                await self._teller.run(lambda _: give_back_garbage(), None)

    async def give_back(self) -> None:
        """Return free memory to the system, in a thread, because this may take milliseconds."""
        await self._teller.run(lambda _: give_back_free_memory(), None)

    def _fail(self, failure: EngineError) -> None:
        self._failure = self._failure or failure
        self._failed.set()
