"""The counters of each model, and how Prometheus and Triton's clients see them."""

import asyncio
import threading
import time
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from models import DeviceLostError, EngineError, Flag, Reason
from service.api.app import create_app
from service.api.v2.description import index_entry, model_statistics
from service.batching.queue import BatchRecord
from service.engine.ranking import NOT_DECODED
from service.engine.watchdog import Bounds
from service.errors import Code
from service.hosting.repository import Repository
from service.telemetry.counts import DECODED, Counts, Phases, phases_of, why_left
from service.telemetry.metrics import Metrics
from tests.support import PATIENCE_S
from tests.support.service.client import (
    AppClient,
    digits,
    metric,
    metric_in,
    samples_in,
    serving,
    until,
)
from tests.support.service.fakes import LONG_S, FakeEngine, decode_digit, fake_info, free

PHASES = ("receive", "decode", "queue", "compute", "respond")


def phases(*, total: float = 0.11) -> Phases:
    return phases_of(total, receive=0.01, decode=0.02, queue=0.03, compute=0.04)


def ran(size: int, *, ms: float, failed: bool = False) -> BatchRecord:
    return BatchRecord(size, compute_s=ms / 1e3, failed=failed)


def test_buckets_are_fine_enough_for_a_p99_between_a_tenth_and_half_a_second() -> None:
    bounds = [float(bound) for bound, _ in Counts(8).sum().duration[0]]
    inside = [bound for bound in bounds if 0.1 <= bound <= 0.5]
    assert (inside[0], inside[-1]) == (0.1, 0.5)
    assert max(high / low for low, high in pairwise(inside)) <= 1.25


def test_every_reason_not_to_decode_on_a_gpu_has_a_count_of_its_own() -> None:
    counts = Counts(4)
    for times, why in enumerate(DECODED, 1):
        for _ in range(times):
            counts.decoded(why)
    assert counts.sum().decoded == {why: times for times, why in enumerate(DECODED, 1)}
    assert len(set(DECODED)) == len(DECODED)
    for reason in Reason:
        assert reason.value in DECODED
    for flag in Flag:
        assert flag.name is not None
        assert why_left(int(flag)) == flag.name.lower().replace("_", " ")
    assert why_left(int(Flag.MARKER | Flag.BAD_CODE)) == "bad code"
    assert why_left(NOT_DECODED) == "engine"


def test_phases_add_up_to_the_whole() -> None:
    assert phases() == (110_000, 10_000, 20_000, 30_000, 40_000, 10_000)
    # Two clocks may disagree by a tick, but no phase is negative.
    assert phases(total=0.09) == (100_000, 10_000, 20_000, 30_000, 40_000, 0)
    # Each is rounded, and so the whole may have to be more.
    assert phases_of(9e-6, *[2.5e-6] * 4) == (12, 3, 3, 3, 3, 0)


def test_a_request_counts_once_and_its_images_each() -> None:
    counts = Counts(4)
    counts.answered(3, phases())
    counts.answered(1, phases())
    counts.batch(ran(2, ms=50))
    counts.batch(ran(2, ms=70))
    counts.batch(ran(1, ms=10))
    counts.batch(ran(1, ms=10, failed=True))
    counts.refused(Code.TOO_MANY, 0.001)
    done = counts.sum()
    assert (done.inferences, done.executions, done.failed_batches) == (4, 3, 1)
    for name, ms in {
        "success": 200,  # receiving is not in it
        "compute_input": 40,
        "queue": 60,
        "compute_infer": 80,
        "compute_output": 20,
    }.items():
        duration = getattr(done, name)
        assert (duration.count, duration.ns) == (2, pytest.approx(ms * 1e6))
    assert (done.fail.count, done.fail.ns) == (1, 1_000_000)
    assert {size: (b.count, b.ns) for size, b in done.batches.items()} == {
        2: (2, 120_000_000),
        1: (1, 10_000_000),
    }
    assert abs(done.last_inference - time.time() * 1e3) < 10_000


def test_rows_add_up() -> None:
    every = one, two, three = Counts(4), Counts(4), Counts(4)
    rows = [counts.row for counts in every]
    one.answered(1, phases())
    two.answered(2, phases(total=0.3))
    two.refused(Code.UNAVAILABLE, 0.1)
    three.batch(ran(3, ms=40))
    for counts in every:
        told = counts.sum([row for row in rows if row is not counts.row])
        assert (told.inferences, told.requests) == (3, {200: 2, 503: 1})
        assert told.duration[1] == pytest.approx(0.41)
        assert dict(told.duration[0])["0.2"] == 1
        assert told.phases["queue"][1] == pytest.approx(0.06)
        assert told.batch_size == ([("1.0", 0), ("2.0", 0), ("3.0", 1), ("4.0", 1), ("+Inf", 1)], 3)
        assert told.executions == 1
        assert told.last_inference == max(row[2] for row in rows)


# Triton's reasons for failures, by the statuses that they are answered with.
REASONS = (
    (429, "REJECTED"),
    (503, "REJECTED"),
    (504, "REJECTED"),
    (499, "CANCELED"),
    (500, "BACKEND"),
)


@pytest.mark.parametrize(
    ("status", "reason"),
    [*REASONS, *((refused, None) for refused in (400, 401, 403, 404, 408, 413, 415, 422, 501))],
)
def test_what_is_refused_for_how_it_is_made_is_no_failure_as_in_triton(
    status: int, reason: str | None
) -> None:
    counts = Counts(1)
    counts.refused(Code(status), 0.5)
    done = counts.sum()
    assert done.requests[status] == 1
    assert (done.fail.count, done.fail.ns) == ((1, 500_000_000) if reason else (0, 0))


@pytest.mark.parametrize(
    ("status", "reason"),
    [*REASONS, (400, None)],
)
def test_failures_are_told_by_tritons_reasons(status: int, reason: str | None) -> None:
    metrics = Metrics(max_batch=1)
    metrics.model("m", "1").counts.refused(Code(status), 0.1)
    told = {
        labels["reason"]: value
        for name, labels, value in samples_in(metrics.exposition().decode())
        if name == "nv_inference_request_failure_total"  # so the parser calls it
    }
    assert told == {r: float(r == reason) for r in ("REJECTED", "CANCELED", "BACKEND", "OTHER")}


def test_tritons_metrics_say_what_the_statistics_say_of_each_model() -> None:
    metrics = Metrics(max_batch=8)
    one, two = metrics.model("one", "1"), metrics.model('t"w\\o', "7")
    one.counts.answered(3, phases())
    one.counts.batch(ran(3, ms=50))
    one.pending = lambda: 5
    text = metrics.exposition().decode()
    told = {
        name.removesuffix("_total"): value  # which the parser adds
        for name, labels, value in samples_in(text)
        if labels == {"model": "one", "version": "1"}
    }
    assert told == {
        "nv_inference_request_success": 1,
        "nv_inference_count": 3,
        "nv_inference_exec_count": 1,
        "nv_inference_request_duration_us": 100_000,
        "nv_inference_queue_duration_us": 30_000,
        "nv_inference_compute_input_duration_us": 20_000,
        "nv_inference_compute_infer_duration_us": 40_000,
        "nv_inference_compute_output_duration_us": 10_000,
        "nv_inference_pending_request_count": 5,
    }
    others = [labels for _, labels, _ in samples_in(text) if labels.get("version") == "7"]
    assert {labels["model"] for labels in others} == {'t"w\\o'}
    assert two.counts.sum().inferences == 0
    for name in told:
        kind = "gauge" if "pending" in name else "counter"
        assert f"# TYPE {name} {kind}\n{name}{{" in text


# --- over HTTP -----------------------------------------------------------------------------------


def two_models(*, strict: bool = False, **engines: FakeEngine) -> Repository:
    """Return a repository of fakes with these names."""
    limits: Any = {"max_batch": 8, "max_queue": 16, "max_body_bytes": 10_000}
    bounds = Bounds(batch_s=LONG_S)
    repository = Repository(**limits, decode_threads=1, strict=strict, bounds=bounds)
    for name, engine in engines.items():
        repository.add(fake_info(name), [engine], free(decode_digit))
    return repository


@pytest.mark.anyio
async def test_each_model_has_its_own_histograms_of_every_phase_and_of_batch_sizes() -> None:
    repository = two_models(quick=FakeEngine(), slow=FakeEngine(delay_s=0.05))
    await repository.warm_up()
    async with AppClient(create_app(repository)) as client:
        for name in ("quick", "slow", "slow"):
            files = [("file", ("x", b"3"))] * 3
            assert digits(await client.post(f"/v1/models/{name}/classify", files=files)) == [3] * 3
        text = (await client.get("/metrics")).text
    for name, count in {"quick": 1, "slow": 2}.items():
        for phase in PHASES:
            sample = f'convoy_phase_duration_seconds_count{{model="{name}",phase="{phase}"}}'
            assert metric_in(text, sample) == count
        assert metric_in(text, f'convoy_batch_size_sum{{model="{name}"}}') == 3 * count
        assert metric_in(text, f'convoy_images_total{{model="{name}"}}') == 3 * count
        assert metric_in(text, f'convoy_ready{{model="{name}"}}') == 1
    compute = 'convoy_phase_duration_seconds_sum{model="slow",phase="compute"}'
    assert metric_in(text, compute) >= 0.1
    assert await repository.drain(PATIENCE_S)
    await repository.close(PATIENCE_S)


class Steps(threading.Event):
    """A gate that lets one batch pass each time it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self._passes = threading.Semaphore(0)

    def open(self) -> None:
        self._passes.release()

    def wait(self, timeout: float | None = None) -> bool:
        return self._passes.acquire(timeout=timeout)


@pytest.mark.anyio
async def test_a_model_that_is_busy_and_full_holds_up_no_other() -> None:
    engine = FakeEngine(max_batch=1)
    repository = two_models(busy=engine, free=FakeEngine())
    await repository.warm_up()
    engine.batches.clear()
    engine._gate = gate = Steps()
    async with AppClient(create_app(repository)) as client:
        path = "/v1/models/busy/classify"
        waiting = [asyncio.create_task(client.post(path, content=b"1")) for _ in range(17)]
        busy = repository.models["busy"]
        await until(lambda: busy.admission.images == 17 and engine.batches == [1])
        assert (await client.post(path, content=b"1")).status_code == 429
        other = asyncio.create_task(client.post("/v1/models/free/classify", content=b"2"))
        await until(lambda: repository.models["free"].runner.batcher.depth == 1)
        ended = 0
        while not other.done():  # they take turns on the device
            gate.open()
            ended += 1
            await until(lambda n=ended: other.done() or len(engine.batches) > n)  # type: ignore[misc]
        assert digits(await other) == [2]
        assert ended <= 2
        inside = await metric(client, 'convoy_images_inside{model="busy"}')
        assert inside == 17 - ended
        assert await metric(client, 'convoy_images_inside{model="free"}') == 0
        pending = await metric(client, 'nv_inference_pending_request_count{model="busy"}')
        assert inside - 1 <= pending <= inside
        draining = asyncio.create_task(repository.drain(PATIENCE_S))
        await asyncio.sleep(0)
        refused = await client.post("/v1/models/free/classify", content=b"2")
        assert refused.status_code == 503
        assert repository.requests == 17 - ended
        for _ in range(17):
            gate.open()
        assert await draining
        assert [digits(answer) for answer in await asyncio.gather(*waiting)] == [[1]] * 17
    await repository.close(PATIENCE_S)


@pytest.mark.anyio
async def test_ready_is_when_every_model_is_warm_and_the_index_says_which_is_not() -> None:
    gate = threading.Event()
    slow = FakeEngine(warm_up=lambda: gate.wait(PATIENCE_S))
    repository = two_models(first=FakeEngine(), second=slow)
    async with AppClient(create_app(repository)) as client:
        warming = asyncio.create_task(repository.warm_up())
        first, second = repository.models.values()
        await until(lambda: index_entry(first)["state"] == "READY")
        assert (await client.get("/v2/models/first/ready")).json() == {
            "name": "first",
            "ready": True,
        }
        assert (await client.get("/v2/models/second/ready")).status_code == 503
        assert (await client.get("/v2/health/ready")).status_code == 503
        assert index_entry(second) == {
            "name": "second",
            "version": "1",
            "state": "LOADING",
            "reason": "warming up",
        }
        for body, names in {b"": ["first", "second"], b'{"ready": true}': ["first"]}.items():
            index = (await client.post("/v2/repository/index", content=body)).json()
            assert [entry["name"] for entry in index] == names
        assert not repository.ready
        gate.set()
        await warming
        assert repository.ready
        assert (await client.get("/v2/health/ready")).status_code == 200
    await repository.close(PATIENCE_S)


@pytest.mark.anyio
async def test_of_several_models_the_one_that_cannot_be_warmed_up_is_named_and_alone_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise EngineError("no memory")

    def lose() -> None:
        raise DeviceLostError("gone")

    for stopping in (
        two_models(strict=True, good=FakeEngine(), bad=FakeEngine(warm_up=fail)),
        two_models(worse=FakeEngine(warm_up=fail), bad=FakeEngine(warm_up=fail)),
    ):
        with pytest.raises(EngineError, match="bad: no memory"):
            await stopping.warm_up()
        assert index_entry(stopping.models["bad"])["state"] == "UNAVAILABLE"
        await stopping.close(PATIENCE_S)
    lost = two_models(good=FakeEngine(), bad=FakeEngine(warm_up=lose))
    with pytest.raises(DeviceLostError):
        await lost.warm_up()
    await lost.close(PATIENCE_S)
    repository = two_models(good=FakeEngine(), bad=FakeEngine(warm_up=fail))
    await repository.warm_up()
    assert "the model bad is not served: no memory" in caplog.text
    assert repository.ready
    repository.check_ready()
    async with AppClient(create_app(repository)) as client:
        assert digits(await client.post("/v1/models/good/classify", content=b"3")) == [3]
        refused = await client.post("/v1/models/bad/classify", content=b"3")
        assert refused.status_code == 503
        assert "did not warm up; see the server's log" in refused.json()["error"]
        listed = (await client.get("/v1/models")).json()["models"]
        assert {model["name"]: model["error"] for model in listed} == {
            "good": "",
            "bad": "no memory",
        }
        text = (await client.get("/metrics")).text
    assert metric_in(text, 'convoy_ready{model="bad"}') == 0
    assert index_entry(repository.models["bad"])["state"] == "UNAVAILABLE"
    await repository.close(PATIENCE_S)


@pytest.mark.anyio
async def test_statistics_count_both_interfaces_and_what_failed() -> None:
    engine = FakeEngine(delay_s=0.02)
    async with serving(engine) as (client, pipeline):
        headers = {"inference-header-content-length": "0"}
        path = "/v2/models/fake/infer"
        assert (await client.post("/v1/classify", content=b"3")).status_code == 200
        assert (await client.post(path, content=b"\x07", headers=headers)).status_code == 200
        engine.failing = True
        assert (await client.post("/v1/classify", content=b"3")).status_code == 500
        told: Any = (await client.get("/v2/models/fake/stats")).json()["model_stats"][0]
        assert told == msgspec.to_builtins(model_statistics(pipeline))
    assert (told["inference_count"], told["execution_count"]) == (2, 2)
    durations = told["inference_stats"]
    assert durations["success"]["count"] == 2
    assert durations["fail"]["count"] == 1
    assert durations["fail"]["ns"] >= 20e6
    assert durations["compute_infer"]["ns"] >= 40e6
    parts = ("compute_input", "queue", "compute_infer", "compute_output")
    # Each is rounded to a nanosecond.
    assert sum(durations[part]["ns"] for part in parts) == pytest.approx(
        durations["success"]["ns"], abs=8
    )
    (batch,) = told["batch_stats"]
    assert (batch["batch_size"], batch["compute_infer"]["count"]) == (1, 2)
