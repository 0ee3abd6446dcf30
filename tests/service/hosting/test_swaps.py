"""Models change while they are served. The scores of the fakes show their version."""

import asyncio
import ctypes
import errno
import gc
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from models import Engine, EngineError, ModelFileError
from service.api.app import create_app
from service.batching.latency import Latency
from service.engine.process_pool import ProcessPool
from service.engine.supervised_engine import State
from service.errors import (
    ModelNotFoundError,
    NoProcessError,
    NotLoadedError,
    NotReadyError,
    NotTriedError,
    ServiceError,
    ShuttingDownError,
)
from service.hosting import swaps
from service.hosting.finding import ModelFile, ReadModel
from service.hosting.loading import OpenModel
from service.hosting.repository import Repository
from service.hosting.swaps import MOST_CHANGES, Swaps
from service.hosting.trial import Trial
from service.settings import Settings
from tests.support import PATIENCE_S
from tests.support.servers import served as live
from tests.support.service.client import AppClient, error_of, metric, samples_in, until
from tests.support.service.fakes import (
    CLASSES,
    FakeEngine,
    decode_digit,
    fake_info,
    free,
    make_repository,
    one_hot,
)

pytestmark = pytest.mark.anyio

FAKE = "fake"


def engine_of(version: int, wrong_from: int = CLASSES, **options: Any) -> FakeEngine:
    """Return an engine whose largest score is 10 + `version`.

    For digits from `wrong_from` on, the engine answers with the next digit.
    """

    def scores(images: Any) -> Any:
        digits = images[:, 0, 0, 0].astype(int)
        seen = np.where(digits >= wrong_from, (digits + 1) % CLASSES, digits)
        return (10 + version) * np.eye(CLASSES, dtype=np.float32)[seen]

    return FakeEngine(scores=scores, **options)


class Folder:
    """Replaces the folder of models. Each model has a version, and a function that opens its
    engine."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[ModelFile, str]] = {}
        self.engines: dict[str, Callable[[], Engine]] = {}
        self.opened: list[str] = []
        self.failure: Exception | None = None
        self.latency: Latency | None = None  # measured in the trial

    def put(
        self,
        stamp: str,
        engine: Callable[[], Engine],
        name: str = FAKE,
        version: str = "1",
        *,
        numbered: bool = False,
    ) -> None:
        """Write the model's files."""
        file = ModelFile(name, version, Path(name), numbered=numbered)
        self.files[name] = file, stamp
        self.engines[name] = engine

    def found(self, *_: Any) -> list[ModelFile]:
        if self.failure is not None:
            raise self.failure
        return [file for file, _ in self.files.values()]

    def stamp(self, file: ModelFile) -> Any:
        return [self.files[file.name][1]]

    def try_file(self, file: ModelFile, *_: Any) -> Any:
        self.opened.append(file.version)
        info, stamp = fake_info(file.name, version=file.version), self.stamp(file)
        opened = self.engines[file.name]
        read = ReadModel(info, None, lambda _: [opened()], stamp)  # type: ignore[arg-type]
        return Trial(read, self.latency)

    def open(self, read: ReadModel, *_: Any) -> Any:
        return OpenModel(read.info, None, read.open([]), None, read.stamp)  # type: ignore[arg-type]


class Served:
    """Holds a client of a server, the server's repository, and the changes of its models."""

    def __init__(self, client: AppClient, repository: Repository, changes: Swaps) -> None:
        self.client, self.repository, self.changes = client, repository, changes

    async def ask(self, digit: int = 7, path: str = "/v1/classify") -> dict[str, Any]:
        answer = await self.client.post(path, content=str(digit).encode())
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def version(self) -> str:
        """Return the version that answers. The version in the answer and the version that the
        scores show must agree."""
        body = b'{"inputs":[{"name":"image","datatype":"UINT8","shape":[1,1,1,1],"data":[3]}]}'
        answer = (await self.client.post(f"/v2/models/{FAKE}/infer", content=body)).json()
        assert max(answer["outputs"][0]["data"]) == 10 + int(answer["model_version"])
        said: str = answer["model_version"]
        return said

    async def post(self, what: str, name: str = FAKE, **options: Any) -> httpx.Response:
        return await self.client.post(f"/v2/repository/models/{name}/{what}", **options)

    async def index(self) -> dict[str, dict[str, str]]:
        entries = (await self.client.post("/v2/repository/index")).json()
        return {entry["name"]: entry for entry in entries}


@asynccontextmanager
async def serving(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncIterator[Served]:
    """Serve version 1 of a model from the folder, with fakes."""
    monkeypatch.setattr(swaps, "check_models", folder.found)
    monkeypatch.setattr(swaps, "stamp_of", folder.stamp)
    monkeypatch.setattr(swaps, "try_file", folder.try_file)
    monkeypatch.setattr(swaps, "open_read", folder.open)
    monkeypatch.setattr(ProcessPool, "run", lambda _, function: function())
    monkeypatch.setattr(swaps, "decoder", lambda *_: free(decode_digit))
    repository = make_repository(folder.engines[FAKE](), swaps=True)  # type: ignore[arg-type]
    repository.keep_default()
    options = Settings(**{"repository_api": True, **settings})
    changes = Swaps(repository, options, None, {FAKE: folder.stamp(folder.files[FAKE][0])})
    repository.changes = changes
    await repository.warm_up()
    async with AppClient(create_app(repository)) as client:
        yield Served(client, repository, changes)
    assert await repository.drain(PATIENCE_S)
    await repository.close(PATIENCE_S)
    for pipeline in repository.models.values():
        admission = pipeline.admission
        assert (admission.requests, admission.images, admission.room.taken) == (0, 0, 0)


@pytest.fixture
def folder() -> Folder:
    made = Folder()
    made.put("a", partial(engine_of, 1))
    return made


@pytest.fixture
async def served(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    async with serving(folder, monkeypatch) as made:
        yield made


# --- versions -------------------------------------------------------------------------------------


async def test_a_request_in_flight_is_answered_by_the_version_that_took_it(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    first = engine_of(1, gate=gate)
    gate.set()
    folder.put("a", lambda: first)
    async with serving(folder, monkeypatch) as served:
        gate.clear()
        inside = asyncio.create_task(served.ask(4))
        await until(lambda: bool(first.batches))
        folder.put("b", partial(engine_of, 2))
        loaded = await served.changes.load(FAKE)
        assert (loaded["version"], await served.version()) == ("2", "2")
        assert served.repository.requests == 1
        assert not first.closed
        gate.set()
        answer = await inside
        assert answer["version"] == "1"
        assert answer["results"][0]["predictions"][0]["index"] == 4
        await until(lambda: first.closed)


@pytest.mark.parametrize("numbered", [False, True])
async def test_a_broken_model_is_opened_again_though_its_files_are_the_same(
    folder: Folder, served: Served, numbered: bool
) -> None:
    folder.put("a", partial(engine_of, 1), numbered=numbered)
    before = served.repository.models[FAKE]
    unchanged = await served.changes.load(FAKE)
    assert served.repository.models[FAKE] is before
    before.runner.state = State.BROKEN
    again = await served.changes.load(FAKE)
    assert served.repository.models[FAKE] is not before
    assert again["name"] == unchanged["name"]
    assert (await served.ask(4))["results"][0]["predictions"][0]["index"] == 4


async def test_a_request_that_waits_for_another_on_its_connection_begins_with_the_new_version() -> (
    None
):
    gate = threading.Event()
    gate.set()
    first = engine_of(1, gate=gate)
    async with live.served(first) as server:
        repository, old = server.repository, server.pipeline
        gate.clear()
        client = await server.connect()
        head = f"POST {live.PATH} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n".encode()
        client.send(head + b"4" + head + b"5")
        await until(lambda: bool(first.batches))
        new = repository.open_aside(
            fake_info(version="2"), [engine_of(2)], free(decode_digit), measure_s=0.0
        )
        await new.runner.warm_up()
        repository.install(new)
        retiring = asyncio.create_task(repository.retire(old))
        gate.set()
        answers = [await client.answer() for _ in range(2)]
        await retiring
    assert [status for status, _, _ in answers] == [200, 200]
    assert [body["version"] for _, _, body in answers] == ["1", "2"]


async def test_the_old_engine_is_freed_after_its_last_request(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = [engine_of(1)]
    old = weakref.ref(engines[0])
    folder.put("a", engines.pop)
    others = set(threading.enumerate())  # of tests before this one
    async with serving(folder, monkeypatch) as served:
        thread = served.repository.models[FAKE].runner._engines[0]._thread
        jobs = weakref.ref(thread.pool.jobs)  # which has a file
        del thread
        await served.ask()
        folder.put("b", partial(engine_of, 2))
        gc.collect()
        gc.disable()  # it runs seldom in a server that has loaded much
        try:
            await served.changes.load(FAKE)
            await until(lambda: old() is None and jobs() is None)
        finally:
            gc.enable()
        began = set(threading.enumerate()) - others
        assert [thread.name for thread in began].count("engine-0") == 1


async def test_a_version_that_is_refused_is_freed_at_once(folder: Folder, served: Served) -> None:
    await served.ask(9)
    engines = [engine_of(2, wrong_from=9)]
    second = weakref.ref(engines[0])
    folder.put("b", engines.pop)
    gc.collect()
    gc.disable()
    try:
        # Not over HTTP, whose answer to an error lets go of the traceback.
        with suppress(NotLoadedError):
            await served.changes.load(FAKE)
        await until(lambda: second() is None)
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
async def test_memory_that_a_version_leaves_free_is_given_back(
    folder: Folder, served: Served
) -> None:
    held = [b"\1" * 100_000 for _ in range(1000)]
    pins = held[::20]
    del held  # 95 MB in holes between the pins, which glibc keeps
    before = anonymous_bytes()
    folder.put("b", partial(engine_of, 2))
    await served.changes.load(FAKE)
    await until(lambda: anonymous_bytes() < before - 60_000_000)
    assert len(pins) == 50


def anonymous_bytes() -> int:
    """Return how many bytes of this process's memory do not come from files."""
    (kib,) = (
        int(line.split()[1])
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("RssAnon:")
    )
    return kib * 1024


async def test_the_next_version_is_opened_once_the_one_before_the_last_is_freed(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    gate.set()
    first = engine_of(1, gate=gate)
    folder.put("a", lambda: first)
    async with serving(folder, monkeypatch) as served:
        gate.clear()
        inside = asyncio.create_task(served.ask())
        await until(lambda: bool(first.batches))
        folder.put("b", partial(engine_of, 2))
        await served.changes.load(FAKE)
        folder.put("c", partial(engine_of, 3))
        third = asyncio.create_task(served.changes.load(FAKE))
        await asyncio.sleep(0.05)
        assert folder.opened == ["2"]
        gate.set()
        await inside
        assert (await third)["version"] == "3"
        assert folder.opened == ["2", "3"]


async def test_an_unload_that_is_cancelled_leaves_the_old_version_to_wait_for(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    gate.set()
    first = engine_of(1, gate=gate)
    folder.put("a", lambda: first)
    async with serving(folder, monkeypatch) as served:
        gate.clear()
        inside = asyncio.create_task(served.ask())
        await until(lambda: bool(first.batches))
        folder.put("b", partial(engine_of, 2))
        await served.changes.load(FAKE)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(served.changes.unload(FAKE), 0.02)
        folder.put("c", partial(engine_of, 3))
        third = asyncio.create_task(served.changes.load(FAKE))
        await asyncio.sleep(0.05)
        assert folder.opened == ["2"]
        gate.set()
        await inside
        assert (await third)["version"] == "3"


async def test_a_version_that_the_trial_timed_runs_one_image_before_it_serves(
    folder: Folder, served: Served
) -> None:
    made: list[FakeEngine] = []

    def second() -> FakeEngine:
        made.append(engine_of(2))
        return made[-1]

    folder.latency = Latency(tuple(0.001 * (n + 1) for n in range(8)))
    folder.put("b", second)
    await served.changes.load(FAKE)
    (engine,) = made
    assert engine.batches == [1]
    assert served.repository.models[FAKE].runner.batcher.latency(0) == folder.latency


async def test_files_that_have_not_changed_are_not_loaded_again(
    folder: Folder, served: Served
) -> None:
    assert (await served.changes.load(FAKE))["version"] == "1"
    assert folder.opened == []


async def test_every_interface_says_which_version_is_served(folder: Folder, served: Served) -> None:
    await served.ask()
    folder.put("b", partial(engine_of, 2))
    answer = await served.post("load")
    assert answer.json() == {
        "name": FAKE,
        "version": "2",
        "images": 1,
        "agreement": 1.0,
        "largest_change": pytest.approx(0.0, abs=1e-3),
    }
    assert (await served.client.get(f"/v2/models/{FAKE}")).json()["versions"] == ["2"]
    assert (await served.client.get(f"/v2/models/{FAKE}/versions/1")).status_code == 404
    assert (await served.index())[FAKE]["version"] == "2"
    (listed,) = (await served.client.get("/v1/models")).json()["models"]
    assert (listed["version"], listed["default"]) == ("2", True)
    assert await metric(served.client, f'convoy_version{{model="{FAKE}"}}') == 2
    assert (await served.ask())["version"] == await served.version() == "2"
    infer = f"/v2/models/{FAKE}/versions/%d/infer"
    assert infer % 2 in served.client.app.endpoints  # type: ignore[attr-defined]
    assert infer % 1 not in served.client.app.endpoints  # type: ignore[attr-defined]


async def test_counts_go_on_over_versions_and_tritons_are_of_each(
    folder: Folder, served: Served
) -> None:
    for version in (1, 2, 3):
        if version > 1:
            folder.put(f"v{version}", partial(engine_of, version))
            await served.changes.load(FAKE)
        for _ in range(version):
            await served.ask()
        answered = f'convoy_requests_total{{model="{FAKE}",status="200"}}'
        assert await metric(served.client, answered) == version * (version + 1) / 2
        of_version = f'nv_inference_request_success_total{{model="{FAKE}",version="{version}"}}'
        assert await metric(served.client, of_version) == version
    samples = samples_in((await served.client.get("/metrics")).text)
    keys = [(name, tuple(sorted(labels.items()))) for name, labels, _ in samples]
    assert len(keys) == len(set(keys))


# --- what does not take over ----------------------------------------------------------------------


async def test_a_version_that_agrees_too_little_is_refused_and_the_reason_is_everywhere(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(folder, monkeypatch, agreement=0.8) as served:
        recent = served.repository.models[FAKE].recent
        assert recent is not None
        for digit in range(CLASSES):
            recent._next = 0.0
            await served.ask(digit)
        other = engine_of(2, wrong_from=7)
        folder.put("b", lambda: other)
        with caplog.at_level(logging.ERROR):
            reason = error_of(await served.post("load"), 422)
        assert reason == (
            "versions 2 and 1 of fake give only 70.0% of 10 recent images the same class, and "
            "their probabilities differ by up to 1.000; at least 80.0% must agree (--agreement), "
            "so version 1 stays"
        )
        assert reason in caplog.text
        assert (await served.index())[FAKE] == {
            "name": FAKE,
            "version": "1",
            "state": "READY",
            "reason": reason,
        }
        of_model = f'{{model="{FAKE}"}}'
        refused = f'convoy_swaps_total{{model="{FAKE}",outcome="refused"}}'
        assert await metric(served.client, refused) == 1
        assert await metric(served.client, "convoy_swap_agreement" + of_model) == 0.7
        assert await metric(served.client, "convoy_swap_images" + of_model) == 10
        change = await metric(served.client, "convoy_swap_largest_change" + of_model)
        assert change == pytest.approx(1, abs=1e-3)
        assert served.repository.models[FAKE].info.version == "1"
        assert other.closed

        folder.put("c", partial(engine_of, 3, wrong_from=8))  # as many as must
        assert (await served.post("load")).json()["agreement"] == 0.8
        assert (await served.index())[FAKE]["reason"] == ""
        assert await served.version() == "3"


@pytest.mark.parametrize("latency", [None, Latency((0.001,) * 8)], ids=["timed", "known"])
async def test_a_version_whose_scores_are_not_finite_is_refused_and_the_next_one_serves(
    folder: Folder, served: Served, latency: Latency | None
) -> None:
    folder.latency = latency
    folder.put("b", lambda: FakeEngine(scores=lambda images: one_hot(images) * np.nan))
    reason = error_of(await served.post("load"), 422)
    assert "version 2 of fake is not served: its scores for random pixels are not finite" in reason
    assert (await served.ask())["version"] == "1"
    folder.put("c", partial(engine_of, 3))
    assert (await served.post("load")).json()["version"] == "3"
    assert (await served.ask())["version"] == "3"


async def test_without_images_nothing_is_claimed_of_a_version(
    folder: Folder, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    folder.put("b", partial(engine_of, 2))
    with caplog.at_level(logging.INFO):
        answer = (await served.post("load")).json()
    assert (answer["images"], answer["agreement"], answer["largest_change"]) == (0, None, None)
    assert "version 2 of fake is served: its answers were not compared" in caplog.text
    exposed = (await served.client.get("/metrics")).text
    assert f'convoy_swap_images{{model="{FAKE}"}} 0' in exposed
    assert "convoy_swap_agreement{" not in exposed


async def test_images_go_with_the_model_with_the_scores_of_its_new_version(
    folder: Folder, served: Served
) -> None:
    await served.ask(9)
    folder.put("b", partial(engine_of, 2))
    await served.changes.load(FAKE)
    folder.put("c", partial(engine_of, 3, wrong_from=9))
    with pytest.raises(
        NotLoadedError, match=r"and 2 of .* 0\.0% of 1 recent images the same class"
    ):
        await served.changes.load(FAKE)
    assert served.repository.models[FAKE].refusal


def fails(why: Exception) -> Engine:
    raise why


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (lambda: fails(ModelFileError("it is no ONNX")), "it is no ONNX"),
        (
            lambda: FakeEngine(
                warm_up=lambda: fails(EngineError("self-test fails at batch size 1"))
            ),
            "self-test fails at batch size 1",
        ),
        (lambda: fails(KeyError("a defect")), "it failed unexpectedly; see the server's log"),
    ],
)
async def test_a_version_that_fails_leaves_the_old_one(
    folder: Folder, served: Served, engine: Callable[[], Engine], says: str
) -> None:
    folder.put("b", engine)
    reason = error_of(await served.post("load"), 422)
    assert reason == f"version 2 of fake is not served: {says}"
    assert (await served.index())[FAKE]["reason"] == reason
    failed = f'convoy_swaps_total{{model="{FAKE}",outcome="failed"}}'
    assert await metric(served.client, failed) == 1
    assert await served.version() == "1"
    assert len(list(served.repository._every)) == 1


async def test_files_in_a_numbered_folder_do_not_change_under_the_same_number(
    folder: Folder, served: Served
) -> None:
    folder.put("b", partial(engine_of, 1), version="1", numbered=True)
    with pytest.raises(NotLoadedError, match="put the new files in a new folder, such as 2"):
        await served.changes.load(FAKE)
    folder.put("c", partial(engine_of, 5), version="5", numbered=True)
    await served.changes.load(FAKE)
    assert await served.version() == "5"


async def test_only_models_of_the_servers_own_folder_are_loaded(
    folder: Folder, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = error_of(await served.post("load", "other"), 404)
    assert f"no such model in the server's repository; this server's models: {FAKE}" in error
    for parameters in ({"config": "{}"}, {"file:1/model.onnx": "AAAA"}):
        answer = await served.post("load", json={"parameters": parameters})
        assert "the server loads models and their settings only" in error_of(answer, 501)
    folder.failure = ModelFileError("the folder is gone")
    assert error_of(await served.post("load"), 422) == "the folder is gone"
    folder.failure = PermissionError(13, "Permission denied", "/models/fake")
    assert "Permission denied" in error_of(await served.post("load"), 422)
    folder.failure = OSError(errno.EMFILE, "too many files")
    answer = await served.post("load")
    assert "a limit of its system (too many files)" in error_of(answer, 503)
    assert answer.headers["retry-after"] == "1"
    folder.failure = None
    monkeypatch.setattr(swaps, "stamp_of", lambda _: fails(OSError(errno.EMFILE, "none")))
    assert "a limit of its system (none)" in error_of(await served.post("load"), 503)
    assert folder.opened == []


async def test_a_folder_that_is_gone_is_no_model(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "models"
    place.mkdir()
    async with serving(folder, monkeypatch, model=place) as served:
        place.rmdir()
        assert "models does not exist" in error_of(await served.post("load"), 422)
        assert (await served.index()).keys() == {FAKE}


async def test_pages_of_other_sites_change_nothing(folder: Folder, served: Served) -> None:
    folder.put("b", partial(engine_of, 2))
    for what in ("load", "unload"):
        answer = await served.post(what, headers={"origin": "https://elsewhere.example"})
        assert "pages of other sites may not change the models" in error_of(answer, 403)
    assert await served.version() == "1"
    assert (await served.post("load", headers={"origin": "http://convoy"})).status_code == 200


async def test_clients_change_nothing_unless_they_may(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(folder, monkeypatch, repository_api=False, watch=True) as served:
        for what in ("load", "unload"):
            assert "start the server with --repository-api" in error_of(
                await served.post(what), 501
            )


# --- unloading ------------------------------------------------------------------------------------


async def test_an_unloaded_model_is_unknown_until_it_is_loaded(
    folder: Folder, served: Served
) -> None:
    old = served.repository.models[FAKE]
    assert (await served.post("unload")).status_code == 200
    assert (await served.index())[FAKE]["state"] == "UNAVAILABLE"
    assert (await served.index())[FAKE]["reason"] == "unloaded"
    for path in ("/v1/classify", f"/v1/models/{FAKE}/classify", f"/v2/models/{FAKE}/infer"):
        answer = await served.client.post(path, content=b"7")
        assert error_of(answer, 404) == (
            "Request for unknown model: 'fake' is not found; this server's models: none"
        )
    assert 'model="fake"' not in (await served.client.get("/metrics")).text
    assert (await served.post("unload")).status_code == 200
    assert "not found" in error_of(await served.post("unload", "other"), 404)
    await served.changes._retired(FAKE)
    assert old.runner.state.value == "shutting down"

    assert (await served.post("load")).json()["version"] == "1"  # the files are the same
    assert await served.version() == "1"
    assert (await served.ask())["version"] == "1"


async def test_a_new_model_leaves_the_default_as_it_was(folder: Folder, served: Served) -> None:
    folder.put("x", partial(engine_of, 1), name="second")
    await served.changes.load("second")
    assert (await served.ask())["model"] == FAKE
    assert (await served.ask(path="/v1/models/second/classify"))["model"] == "second"


async def test_a_new_model_that_fails_is_listed_as_broken(folder: Folder, served: Served) -> None:
    folder.put("x", lambda: fails(ModelFileError("it is no ONNX")), name="second")
    with pytest.raises(NotLoadedError):
        await served.changes.load("second")
    entry = (await served.index())["second"]
    assert (entry["state"], entry["version"]) == ("UNAVAILABLE", "1")
    assert "it is no ONNX" in entry["reason"]
    folder.put("y", partial(engine_of, 2), name="second")
    await served.changes.load("second")
    assert (await served.index())["second"]["state"] == "READY"


# --- its tasks ------------------------------------------------------------------------------------


async def test_a_load_goes_on_without_the_client_that_asked(folder: Folder, served: Served) -> None:
    gate = threading.Event()
    folder.put("b", partial(engine_of, 2, warm_up=lambda: gate.wait(PATIENCE_S)))
    asking = asyncio.create_task(served.changes.load(FAKE))
    await until(lambda: folder.opened == ["2"])
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    gate.set()
    await until(lambda: served.repository.models[FAKE].info.version == "2")


async def test_of_too_many_changes_that_wait_the_newest_is_refused(
    folder: Folder, served: Served
) -> None:
    """Those whose clients have left wait as well."""
    gate = threading.Event()
    folder.put("b", partial(engine_of, 2, warm_up=lambda: gate.wait(PATIENCE_S)))
    first = asyncio.create_task(served.changes.load(FAKE))
    await until(lambda: folder.opened == ["2"])
    loads = [asyncio.create_task(served.changes.load(FAKE)) for _ in range(MOST_CHANGES - 2)]
    left = asyncio.create_task(served.changes.unload("second"))
    await until(lambda: served.changes._changes == MOST_CHANGES)
    loads[0].cancel()
    await asyncio.wait(loads[:1])
    for what in ("load", "unload"):
        answer = await served.post(what)
        assert "64 models are being loaded or unloaded, or wait for it" in error_of(answer, 429)
        assert int(answer.headers["retry-after"]) == 1
    gate.set()
    assert [(await load)["version"] for load in (first, *loads[1:])] == ["2"] * 62
    with pytest.raises(ModelNotFoundError):
        await left
    assert (await served.post("load")).status_code == 200


async def test_a_server_that_ends_lets_nothing_take_over(folder: Folder, served: Served) -> None:
    gate = threading.Event()
    new = engine_of(2, warm_up=lambda: gate.wait(PATIENCE_S))
    folder.put("b", lambda: new)
    asking = asyncio.create_task(served.changes.load(FAKE))
    await until(lambda: len(list(served.repository._every)) == 2)
    served.changes.stop()
    gate.set()
    with pytest.raises(ShuttingDownError):
        await asking
    assert new.closed
    with pytest.raises(ShuttingDownError):
        await served.changes.unload(FAKE)


async def test_a_server_that_ends_waits_for_no_trial(
    folder: Folder, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(swaps, "check_models", folder.found)
    monkeypatch.setattr(swaps, "stamp_of", folder.stamp)
    monkeypatch.setattr(swaps, "try_file", lambda *_: pytest.fail("this cannot be pickled"))
    monkeypatch.setattr(served.changes, "_try", partial(tried_for_long, served.changes))
    folder.put("b", partial(engine_of, 2))
    asking = asyncio.create_task(served.changes.load(FAKE))
    processes = served.changes._processes
    await until(lambda: bool(processes._busy))
    served.changes.stop()
    with pytest.raises(ShuttingDownError):
        await asyncio.wait_for(asking, PATIENCE_S)
    assert not processes._busy


def tried_for_long(changes: Swaps, _: object) -> object:
    return changes._processes.run(partial(time.sleep, 10 * PATIENCE_S))


async def test_a_trial_that_crashes_leaves_the_old_version(
    folder: Folder, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(_: object, __: object) -> None:
        raise NotTriedError("was ended by signal 11")

    monkeypatch.setattr(ProcessPool, "run", crash)
    folder.put("b", partial(engine_of, 2))
    assert error_of(await served.post("load"), 422) == (
        "version 2 of fake is not served: the process that tested the new version was ended by"
        " signal 11; the model may be the cause"
    )
    assert await served.version() == "1"


async def test_nothing_is_loaded_before_the_server_is_warm(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(folder, monkeypatch) as served:
        served.repository.models[FAKE].runner.state = State.WARMING
        with pytest.raises(NotReadyError):
            await served.changes.load(FAKE)
        served.repository.models[FAKE].runner.state = State.READY


async def test_what_is_being_loaded_is_closed_with_the_server(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    new = engine_of(2, warm_up=lambda: gate.wait(PATIENCE_S))
    async with serving(folder, monkeypatch) as served:
        folder.put("b", lambda: new)
        asking = asyncio.create_task(served.changes.load(FAKE))
        await until(lambda: len(list(served.repository._every)) == 2)
        asyncio.get_running_loop().call_later(0.05, gate.set)
    with pytest.raises(ServiceError):
        await asking
    assert new.closed


# --- watching -------------------------------------------------------------------------------------


@pytest.fixture
async def watched(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(swaps, "LOOK_S", 0.01)
    async with serving(folder, monkeypatch, watch=True) as made:
        yield made


async def test_changed_files_are_loaded_once_they_look_the_same_twice(
    folder: Folder, watched: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    stamp = folder.stamp

    def growing(file: ModelFile) -> Any:
        nonlocal looks
        looks += 1
        return [looks] if looks < 10 else stamp(file)

    folder.put("b", partial(engine_of, 2))
    monkeypatch.setattr(swaps, "stamp_of", growing)
    await until(lambda: watched.repository.models[FAKE].info.version == "2")
    assert looks >= 10
    assert folder.opened == ["2"]


async def test_a_refused_version_is_not_tried_again_until_its_files_change(
    folder: Folder, watched: Served
) -> None:
    folder.put("b", lambda: fails(ModelFileError("half a file")))
    await until(lambda: folder.opened == ["2"])
    await asyncio.sleep(0.1)
    assert folder.opened == ["2"]
    folder.put("c", partial(engine_of, 3))
    await until(lambda: watched.repository.models[FAKE].info.version == "3")


async def test_a_version_that_a_limit_of_the_system_stopped_is_tried_again(
    folder: Folder, watched: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []

    def refuse(*_: object) -> None:
        refused.append(NoProcessError(OSError(errno.EAGAIN, "no process")))
        raise refused[-1]

    with monkeypatch.context() as patch:
        patch.setattr(ProcessPool, "run", refuse)
        folder.put("b", partial(engine_of, 2))
        await until(lambda: len(refused) > 1)
        assert watched.repository.models[FAKE].info.version == "1"
    await until(lambda: watched.repository.models[FAKE].info.version == "2")
    assert folder.opened == ["2"]


async def test_new_folders_are_loaded_and_missing_ones_stay(
    folder: Folder, watched: Served
) -> None:
    folder.put("x", partial(engine_of, 1), name="second")
    await until(lambda: "second" in watched.repository.models)
    folder.failure = ModelFileError("nothing is there")
    await asyncio.sleep(0.05)
    folder.failure = None
    del folder.files["second"]
    await asyncio.sleep(0.05)
    assert (await watched.ask(path="/v1/models/second/classify"))["model"] == "second"
    folder.put("b", partial(engine_of, 2))
    await until(lambda: watched.repository.models[FAKE].info.version == "2")


async def test_files_that_vanish_after_they_were_looked_at_do_not_end_the_watch(
    folder: Folder, watched: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    vanished = []

    def find(name: str) -> Any:
        vanished.append(name)
        folder.failure = FileNotFoundError(2, "No such file or directory", name)
        try:
            return Swaps._find(watched.changes, name)
        finally:
            folder.failure = None

    with monkeypatch.context() as patch:
        patch.setattr(watched.changes, "_find", find)
        folder.put("b", partial(engine_of, 2))
        await until(lambda: vanished == [FAKE])
    await until(lambda: watched.repository.models[FAKE].info.version == "2")


async def test_a_name_that_is_unknown_to_clients_is_not_found(served: Served) -> None:
    with pytest.raises(ModelNotFoundError):
        await served.changes.load("nothing")
