"""A folder with one broken model. Every interface shows the fault."""

import asyncio
import shutil
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path

import pytest

from models import BUILT_IN_MODEL, DeviceKind
from service.api.app import create_app
from service.api.v2 import description
from service.errors import BrokenModelError, ModelNotFoundError
from service.hosting.opening import add_models, make_repository
from service.hosting.repository import Repository, nearest
from service.settings import Settings
from service.telemetry.counts import Counts, Totals
from service.telemetry.metrics import Metrics
from tests.support import PATIENCE_S
from tests.support.servers.several_models import CHANNELS, SAMPLES, make_models
from tests.support.service.client import AppClient, error_of, metric_in, until
from tests.support.service.fakes import FakeEngine, decode_digit, fake_info, free
from tests.support.service.fakes import make_repository as make_fakes

pytestmark = pytest.mark.anyio

THREE = next(path for path in SAMPLES if path.name.startswith("3")).read_bytes()


def repository_of(folder: Path, default: str | None = None) -> Repository:
    """Return a repository that is open but not warm."""
    settings = Settings(
        model=folder, default_model=default, device=DeviceKind.CPU, threads=1, max_batch=1
    )
    repository = make_repository(settings)
    add_models(repository, settings)
    return repository


@pytest.fixture
async def repository(tmp_path: Path) -> AsyncIterator[Repository]:
    """Yield a warm repository with two models: `digits`, and CHANNELS, which is broken."""
    folder = make_models(tmp_path)
    (folder / CHANNELS / "3" / "model.onnx").write_text("this is no model")
    repository = repository_of(folder)
    await repository.warm_up()
    yield repository
    await repository.close(PATIENCE_S)


async def test_the_other_models_are_served_and_the_server_is_ready(repository: Repository) -> None:
    async with AppClient(create_app(repository)) as client:
        answer = await client.post("/v1/models/digits/classify?top_k=1", content=THREE)
        assert answer.json()["results"][0]["predictions"][0]["label"] == "3"
        assert (await client.get("/v2/health/ready")).status_code == 200
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/v2/models/digits/ready")).status_code == 200


async def test_the_broken_model_is_listed_with_its_error(repository: Repository) -> None:
    async with AppClient(create_app(repository)) as client:
        models = (await client.get("/v1/models")).json()["models"]
        assert [(each["name"], bool(each["error"])) for each in models] == [
            ("digits", False),
            (CHANNELS, True),
        ]
        assert "model.onnx" in models[1]["error"]
        assert models[1]["state"].startswith("broken")
        index = (await client.post("/v2/repository/index")).json()
        entry = next(each for each in index if each["name"] == CHANNELS)
        assert (entry["version"], entry["state"]) == ("3", "UNAVAILABLE")
        assert entry["reason"] == models[1]["error"]
        ready = (await client.post("/v2/repository/index", content=b'{"ready": true}')).json()
        assert [each["name"] for each in ready] == ["digits"]
        text = (await client.get("/metrics")).text
        assert metric_in(text, f'convoy_ready{{model="{CHANNELS}"}}') == 0
        assert metric_in(text, 'convoy_ready{model="digits"}') == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"/v1/models/{CHANNELS}/classify"),
        ("POST", f"/v2/models/{CHANNELS}/infer"),
        ("POST", f"/v2/models/{CHANNELS}/versions/3/infer"),
        ("GET", f"/v2/models/{CHANNELS}"),
        ("GET", f"/v2/models/{CHANNELS}/ready"),
        ("GET", f"/v2/models/{CHANNELS}/config"),
        ("GET", f"/v2/models/{CHANNELS}/stats"),
    ],
)
async def test_every_request_to_it_is_answered_503_with_the_reason(
    repository: Repository, method: str, path: str
) -> None:
    async with AppClient(create_app(repository)) as client:
        answer = await client.request(method, path, content=THREE if method == "POST" else None)
    assert answer.status_code == 503
    assert f"the model {CHANNELS} could not be opened: " in answer.json()["error"]


async def test_a_guess_and_its_doubts_are_listed() -> None:
    repository = make_fakes()
    (pipeline,) = repository.models.values()
    pipeline.info = replace(pipeline.info, guess="imagenet", warning="probably wrong")
    async with AppClient(create_app(repository)) as client:
        (told,) = (await client.get("/v1/models")).json()["models"]
    assert (told["guess"], told["warning"], told["error"]) == ("imagenet", "probably wrong", "")
    await repository.close(PATIENCE_S)


async def test_no_other_model_stands_in_for_a_broken_default(tmp_path: Path) -> None:
    folder = make_models(tmp_path)
    (folder / CHANNELS / "3" / "model.onnx").write_text("this is no model")
    for default, status in ((None, 404), (CHANNELS, 503)):
        repository = repository_of(folder, default)
        assert repository.default is None
        async with AppClient(create_app(repository)) as client:
            answer = await client.post("/v1/classify", content=THREE)
        assert answer.status_code == status
        await repository.close(PATIENCE_S)


async def test_a_broken_model_that_alone_remains_is_the_default(repository: Repository) -> None:
    async with AppClient(create_app(repository)) as client:
        served = repository.remove("digits")
        assert served is not None
        await repository.retire(served)
        for path in ("/v1/classify", "/v1/embeddings"):
            assert "could not be opened" in error_of(await client.post(path, content=THREE), 503)
        assert repository.remove(CHANNELS) is None
        told = error_of(await client.post("/v1/classify", content=THREE), 404)
        assert told == "there is no default model; the server has no model"


async def test_another_version_of_a_broken_model_is_unknown(repository: Repository) -> None:
    with pytest.raises(ModelNotFoundError):
        repository.find(CHANNELS, "7")
    with pytest.raises(BrokenModelError):
        repository.find(CHANNELS, "3")


async def test_a_folder_of_one_model_has_it_as_its_default(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    shutil.copy(BUILT_IN_MODEL, tmp_path / "mine" / "model.onnx")
    repository = repository_of(tmp_path)
    assert repository.default is repository.models["mine"]
    await repository.close(PATIENCE_S)


async def test_who_asks_for_metrics_while_they_are_made_shares_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, made = threading.Event(), list[int]()

    def exposition(_: Metrics) -> bytes:
        made.append(len(made))
        gate.wait(PATIENCE_S)
        time.sleep(0.02)
        return b"%d" % made[-1]

    monkeypatch.setattr(Metrics, "exposition", exposition)
    fakes = make_fakes()
    first = asyncio.ensure_future(fakes.exposition())
    await until(lambda: made == [0])
    asked = [fakes.exposition() for _ in range(20)]
    left = asyncio.ensure_future(fakes.exposition())
    left.cancel()
    began = time.monotonic()
    gate.set()
    assert await first == b"0"
    assert await asyncio.gather(*asked) == [b"1"] * 20
    assert time.monotonic() - began > 4 * 0.02
    assert await fakes.exposition() == b"2"
    await fakes.close(PATIENCE_S)


async def test_metrics_are_made_again_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Metrics) -> bytes:
        raise OSError("the driver is gone")

    fakes = make_fakes()
    with monkeypatch.context() as patched:
        patched.setattr(Metrics, "exposition", fail)
        with pytest.raises(OSError, match="driver"):
            await fakes.exposition()
    assert b"convoy_ready" in await fakes.exposition()
    await fakes.close(PATIENCE_S)


def test_a_suggestion_compares_few_names_and_only_where_they_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """difflib took 16 ms to compare 64 names of 50 characters with the same letters in another
    order."""
    compared: list[int] = []

    def matcher(junk: None, one: str, other: str) -> SequenceMatcher[str]:
        compared.append(max(len(one), len(other)))
        return SequenceMatcher(junk, one, other)

    monkeypatch.setattr("service.hosting.repository.SequenceMatcher", matcher)
    names = [f"efficientnet-b0-imagenet-fp16-version-{n:03}-batch" for n in range(64)]
    for wanted in (names[7][::-1], names[7][15::-1] + names[7][16:]):
        nearest(wanted, names, 0.6)
    assert len(compared) <= 4
    assert max(compared) <= 24
    for wanted, near in (
        (names[7].replace("fp16", "pf16"), names[7]),
        (names[7].upper(), None),
        ("digit", None),
        ("", None),
    ):
        assert nearest(wanted, names, 0.6) == near
    assert nearest("digit", [*names, "digits"], 0.6) == "digits"
    assert nearest("gidits", [*names, "digits"], 0.6) == "digits"


async def test_the_counts_of_many_models_are_summed_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To sum a model's counts takes 0.3 ms."""
    repository = make_fakes()
    for number in range(30):
        repository.add(fake_info(f"fake-{number}"), [FakeEngine()], free(decode_digit))
    await repository.warm_up()
    summed, at_once, total = 0, [], Counts.sum

    def count(counts: Counts) -> Totals:
        nonlocal summed
        summed += 1
        return total(counts)

    async def look() -> None:
        nonlocal summed
        while True:
            at_once.append(summed)
            summed = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(Counts, "sum", count)
    looking = asyncio.create_task(look())
    async with AppClient(create_app(repository)) as client:
        stats = (await client.get("/v2/models/stats")).json()["model_stats"]
        listed = (await client.get("/v1/models")).json()["models"]
    looking.cancel()
    assert [each["name"] for each in stats] == [each["name"] for each in listed]
    assert len(stats) == 31
    assert sum(at_once) + summed == 31
    assert max(at_once) == description.AT_ONCE
    assert await repository.close(PATIENCE_S)
