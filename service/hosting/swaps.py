"""Loads new versions of models while the old versions are served, and then replaces the old
versions.

    a call, or changed files
      └─ read ── self-test ── every batch size ── recent images ─┬─ opened in the server, replaces
                                                                 └─ refused: answers differ too much

If the model will run on the CPU, a separate process does all of this except the last step
(`trial.py`).

A request is answered by the version that was served when the request began. The old version is
freed after its last request. One model is loaded at a time. At most two versions of a model have
engines: a third version is opened only after the first is freed.
"""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from models import Array, ModelError, ModelFileError
from service.engine.process_pool import ProcessPool
from service.engine.supervised_engine import State
from service.engine.threads import ThreadPool
from service.errors import (
    ModelNotFoundError,
    NoProcessError,
    NotLoadedError,
    NotReadyError,
    NotTriedError,
    QueueFullError,
    RetryableError,
    ServiceError,
    ShuttingDownError,
)
from service.hosting.comparison import compare, relabelled
from service.hosting.finding import ModelFile, ReadModel, Stamp, check_models, decoder, stamp_of
from service.hosting.loading import OpenModel, for_clients, open_read
from service.hosting.model_info import FailedModel
from service.hosting.pipeline import Pipeline
from service.hosting.recent import Example, Recent
from service.hosting.repository import Changes, LoadResult, Repository, those_there_are
from service.hosting.trial import Trial, prepared, try_file
from service.images.clip import Frames
from service.machine.memory import give_back_free_memory
from service.settings import Settings, SettingsError
from service.telemetry.metrics import Comparison

# Seconds between two checks of the files. Changed files are loaded once two checks find the same
# stamp; until then a program may still be writing them.
LOOK_S = 1.0

MOST_CHANGES = 64
"""The most loads and unloads at once. One is carried out, and the others wait, also those whose
clients have left."""

# Seconds for which a new version's batches of every size are timed on a device, where they compete
# with served batches.
_MEASURE_S = 0.1

_log = logging.getLogger("convoy")


class _Version(NamedTuple):
    """Holds the version number of a model's files, and the files' stamp."""

    number: str
    stamp: Stamp


class Swaps(Changes):
    """Loads, replaces and unloads the models of a repository. Not thread-safe: use it from the
    repository's event loop."""

    def __init__(
        self,
        repository: Repository,
        settings: Settings,
        expectations: Sequence[str] | None,
        stamps: Mapping[str, Stamp],
    ) -> None:
        """`settings` and `expectations` say which models are served. `stamps` has the `Stamp` of
        each open model's files."""
        self._repository, self._settings, self._expectations = repository, settings, expectations
        self.by_clients = settings.repository_api
        model = settings.model
        self._folder = model if model is not None and model.is_dir() else None
        self._served = dict(stamps)
        versions = {name: model.info.version for name, model in repository.models.items()}
        self._tried = {name: _Version(versions[name], stamp) for name, stamp in stamps.items()}
        self._lock = asyncio.Lock()
        self._changes = 0  # loads and unloads: the one that has the lock, and those that wait
        self._thread = ThreadPool("load", 1)
        bound_s = settings.warm_up_timeout_s or inf
        self._processes = ProcessPool(NotTriedError, bound_s, idle=True)
        self._tasks: set[asyncio.Task[LoadResult]] = set()
        self._retiring: dict[str, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._stopped = False

    @override
    def start(self) -> None:
        if self._settings.watch and not self._stopped:
            self._watching = asyncio.create_task(self._watch())

    @override
    def stop(self) -> None:
        if not self._stopped and not self._lock.locked():
            self._thread.close()
        self._stopped = True
        self._processes.kill()
        if self._watching is not None:
            self._watching.cancel()

    @override
    async def load(self, name: str) -> LoadResult:
        loading = asyncio.create_task(self._load(name))
        self._tasks.add(loading)
        loading.add_done_callback(self._tasks.discard)
        loading.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            return await asyncio.shield(loading)
        finally:
            del loading  # its error's traceback would have it, and the versions with it: a cycle

    @override
    async def unload(self, name: str) -> None:
        async with self._alone():
            if name in self._repository.unloaded:
                return
            await self._retired(name)
            old = self._repository.remove(name)
            self._served.pop(name, None)
            self._retire(old)
            _log.info("the model %s is unloaded", name)

    async def _load(self, name: str) -> LoadResult:
        async with self._alone():
            file, stamp = await self._thread.run(self._find, name)
            old = self._repository.models.get(name)
            ready = old is not None and old.runner.state is not State.BROKEN
            if old is not None and ready and self._served.get(name) == stamp:
                return _loaded(old, Comparison())
            file = replace(file, version=self._version(file, stamp))
            before = self._tried.get(name)
            self._tried[name] = _Version(file.version, stamp)
            await self._retired(name)
            try:
                return await self._swap(old, file, stamp)
            except NotLoadedError as error:
                why = str(error)  # a log that keeps its records must not keep the error's frames
                _log.error("%s", why)
                self._refuse(old, file, "refused", why)
                raise
            except ShuttingDownError:
                raise
            except RetryableError as error:  # the next check of the files tries again
                _log.error("version %s of %s is not served yet: %s", file.version, name, error)
                del self._tried[name]
                if before is not None:
                    self._tried[name] = before
                raise
            except (ModelError, ServiceError) as error:
                self._check()
                unserved = f"version {file.version} of {name} is not served: "
                _log.error("%s%s", unserved, error)
                why = unserved + for_clients(error, self._settings, file)
                raise self._refuse(old, file, "failed", why) from error
            except Exception as error:
                _log.exception("version %s of %s failed unexpectedly", file.version, name)
                why = (
                    f"version {file.version} of {name} is not served: it failed unexpectedly; see "
                    "the server's log"
                )
                raise self._refuse(old, file, "failed", why) from error

    async def _swap(self, old: Pipeline | None, file: ModelFile, stamp: Stamp) -> LoadResult:
        """Open and test a new version, compare it with the old one, and then serve it."""
        repository, name = self._repository, file.name
        served = old if old is not None and old.runner.state is not State.BROKEN else None
        if served is not None and served.info.version == file.version and file.numbered:
            raise NotLoadedError(
                f"the files of version {file.version} of {name} changed while this version is"
                f" served; put the new files in a new folder, such as {int(file.version) + 1}"
            )
        examples = old.recent.examples if old is not None and old.recent is not None else ()
        trial = await self._thread.run(
            self._try,
            partial(
                try_file,
                *(file, self._settings, self._expectations, old.info if old is not None else None),
                [example.image for example in examples],
            ),
        )
        self._check()
        opened = await self._thread.run(partial(self._open, file), trial.read)
        decode = decoder(opened.preprocessing, self._settings)
        new = repository.open_aside(
            *(opened.info, opened.engines, decode, opened.reopen, _MEASURE_S, trial.latency)
        )
        try:
            await new.runner.warm_up()
            compared = await self._compare(old, new, examples, trial.scores)
            self._judge(old, new, compared)
            self._check()
        except BaseException:
            await repository.discard(new)
            raise
        repository.install(new)
        self._served[name] = stamp
        repository.metrics.swapped(name, "loaded")
        self._retire(old)
        _log.info(
            "version %s of %s is served: %s", file.version, name, _summary(old, new, compared)
        )
        return _loaded(new, compared)

    async def _compare(
        self,
        old: Pipeline | None,
        new: Pipeline,
        examples: Sequence[Example],
        scores: Sequence[NDArray[np.float32] | None] | None,
    ) -> Comparison:
        """Compare a new version with the old one on recent images. `scores` has the new version's
        scores, or is None if they must be computed."""
        if old is None:
            return Comparison()
        if scores is None:
            scores = [await self._scores(old, new, example.image) for example in examples]
        before, after = [], []
        for example, row in zip(examples, scores, strict=True):
            if row is not None:
                before.append(example)
                after.append(Example(example.image, row))
        new.recent = Recent(after)
        compared = compare(old.info, before, new.info, after)
        self._repository.metrics.compared[new.info.name] = compared
        return compared

    async def _scores(
        self, old: Pipeline, new: Pipeline, image: bytes | Frames | Array
    ) -> NDArray[np.float32] | None:
        """Return the new version's scores for an image, or None if the new version does not accept
        the image."""
        prepare = partial(prepared, old.info, new.info, new.prepare)
        taken = await self._thread.run(prepare, image)
        return None if taken is None else (await new.runner.try_out(taken)).scores.copy()

    def _judge(self, old: Pipeline | None, new: Pipeline, compared: Comparison) -> None:
        """Raise NotLoadedError if the answers of a new version differ too much from the old
        answers."""
        least = self._settings.agreement
        if old is None or compared.agreement is None:
            return
        if compared.agreement < least:
            info = new.info
            raise NotLoadedError(
                f"versions {info.version} and {old.info.version} of {info.name} give only "
                f"{compared.agreement:.1%} of {compared.images} recent images the same class, and "
                f"their probabilities differ by up to {compared.largest_change:.3f}; at least "
                f"{least:.1%} must agree (--agreement), so version {old.info.version} stays"
            )

    def _refuse(
        self, old: Pipeline | None, file: ModelFile, outcome: str, why: str
    ) -> NotLoadedError:
        """Record why a version is not served: in the metrics, and in the error that clients see.
        Return this error."""
        repository = self._repository
        repository.metrics.swapped(file.name, outcome)
        if old is not None:
            old.refusal = why
        else:
            repository.unloaded.pop(file.name, None)
            if file.name not in repository.broken:
                repository.add_broken(FailedModel(file.name, file.version, why))
            repository.broken[file.name] = FailedModel(file.name, file.version, why)
        return NotLoadedError(why)

    def _retire(self, old: Pipeline | None) -> None:
        if old is not None:
            self._retiring[old.info.name] = asyncio.create_task(self._free(old))

    async def _free(self, old: Pipeline) -> None:
        """Close a version after its last request, and free its memory."""
        await self._repository.retire(old)
        if not self._stopped:
            await self._thread.run(lambda _: give_back_free_memory(), None)

    async def _retired(self, name: str) -> None:
        """Wait until the previous version of a model is closed."""
        if (retiring := self._retiring.get(name)) is not None:
            await asyncio.wait([retiring])
            # Only now: a caller that is cancelled has not waited.
            if self._retiring.get(name) is retiring:
                del self._retiring[name]
            retiring.result()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Wait until no other model is being loaded or unloaded. Until the block ends, other loads
        and unloads wait. Raises QueueFullError if too many wait, and the errors of `_check`."""
        if self._changes >= MOST_CHANGES:
            raise QueueFullError(
                f"{self._changes} models are being loaded or unloaded, or wait for it, and at most"
                f" {MOST_CHANGES} are allowed; try again in a second"
            )
        self._changes += 1
        try:
            async with self._lock:
                self._check()
                try:
                    yield
                finally:
                    if self._stopped:
                        self._thread.close()
        finally:
            self._changes -= 1

    def _check(self) -> None:
        """Raise RetryableError if models may not be loaded or unloaded now."""
        if self._stopped:
            raise ShuttingDownError("the server is shutting down; load the model on another server")
        if any(m.runner.state is State.WARMING for m in self._repository.models.values()):
            raise NotReadyError("the server is warming up; try again in a second")

    def _version(self, file: ModelFile, stamp: Stamp) -> str:
        """Return the version number for a model's files. A numbered folder gives the number. For
        other files, it is the last number, plus one if the files have changed."""
        last = self._tried.get(file.name)
        if file.numbered or last is None:
            return file.version
        return last.number if last.stamp == stamp else str(int(last.number) + 1)

    async def _watch(self) -> None:
        """Load each model that is new or whose files have changed."""
        pending: dict[str, Stamp] = {}
        complaint = ""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                found = await self._thread.run(self._look, None)
            except (ModelError, SettingsError, OSError) as error:
                if str(error) != complaint:
                    complaint = str(error)
                    _log.error("the files of models cannot be checked: %s", complaint)
                continue
            complaint = ""
            for name, stamp in found.items():
                tried = self._tried.get(name)
                if tried is not None and tried.stamp == stamp:
                    continue
                if pending.get(name) != stamp:
                    pending[name] = stamp
                    continue
                try:
                    await self.load(name)
                except ServiceError as error:  # log the error, unless it is temporary
                    _log.debug("%s", error)

    # --- called in the thread ---------------------------------------------------------------------

    def _look(self, _: None) -> Mapping[str, Stamp]:
        return {file.name: stamp_of(file) for file in self._find_files()}

    def _find(self, name: str) -> tuple[ModelFile, Stamp]:
        try:
            found = {file.name: file for file in self._find_files()}
            if name in found:
                return found[name], stamp_of(found[name])
        except (ModelError, SettingsError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise NoProcessError(error) from error
            raise NotLoadedError(for_clients(error, self._settings)) from error
        raise ModelNotFoundError(
            f"failed to load '{name}': there is no such model in the server's"
            f" repository; {those_there_are(name, list(found))}"
        )

    def _find_files(self) -> Sequence[ModelFile]:
        if self._folder is not None and not self._folder.is_dir():  # else it would be a file's name
            raise ModelFileError(f"the folder {self._folder} does not exist")
        return check_models(self._settings, self._expectations)

    def _try(self, trial: Callable[[], Trial]) -> Trial:
        try:
            return self._processes.run(trial)
        finally:
            self._processes.end_idle()  # it would keep 0.2 GB

    def _open(self, file: ModelFile, read: ReadModel) -> OpenModel:
        return open_read(read, file, self._settings, self._expectations)


def _summary(old: Pipeline | None, new: Pipeline, compared: Comparison) -> str:
    """Return a phrase for the log that says how the new version's answers differ from the old
    version's."""
    said = ["its answers were not compared, because there are no recent images"]
    if compared.agreement is not None:
        said = [
            f"{compared.agreement:.1%} of {compared.images} recent images have the same class as"
            f" before, and no probability changed by more than {compared.largest_change:.3f}"
        ]
    if old is not None and (phrase := relabelled(old.info, new.info)):
        said.append(phrase)
    return "; ".join(said)


def _loaded(pipeline: Pipeline, compared: Comparison) -> LoadResult:
    info = pipeline.info
    return LoadResult(
        name=info.name,
        version=info.version,
        images=compared.images,
        agreement=compared.agreement,
        largest_change=compared.largest_change,
    )
