"""One scenario of MLPerf's LoadGen, in a process of its own: LoadGen keeps state between two.

    python -m benchmarks.serving.mlperf_scenario JOB    a Job as JSON; prints a Result as JSON

LoadGen decides when which image is asked for, times it, and judges. What it asks is a group of
images: one, or eight in MultiStream; Offline's one great query is cut into groups of eight.
"""

import json
import queue
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import mlperf_loadgen as lg
import numpy as np

from benchmarks.serving.http_client import Connection, post_request
from loadtest.images import ImageFile, load_images
from models import DeviceKind, load_classifier, open_engine
from service.images.decode import ImageLimits, prepare_image

SCENARIOS = ("SingleStream", "MultiStream", "Server", "Offline")
GROUP = 8

# MLPerf's own number of images for ResNet-50, which stay in memory during a run.
MOST_IMAGES = 1024

# Connections that ask at once: in Server as many as may ever be needed, in Offline enough for the
# server to decode one group while it computes another.
_CONNECTIONS = {"SingleStream": 1, "MultiStream": 1, "Server": 64, "Offline": 3}

_MARK = ":::MLLOG "

Ask = Callable[[Sequence[int]], None]
"""Classifies the images of these numbers; raises what goes wrong."""


@dataclass(frozen=True)
class Job:
    """What to run."""

    scenario: str
    url: str | None  # where a server is; the engine itself if there is none
    model: str
    preset: str | None
    images: str
    seconds: float
    bound_ms: float  # of Server, for p99
    rate: float  # of Server, queries a second


@dataclass(frozen=True)
class Result:
    """What LoadGen says; latencies are a query's."""

    verdict: str  # VALID, or INVALID and what was not met
    in_bound: bool  # whether its bound on latency was kept
    value: float  # the scenario's number: ms of SingleStream and MultiStream, samples/s of others
    queries: int
    latency_ms: dict[str, float]


@contextmanager
def over_http(job: Job, images: Sequence[ImageFile]) -> Iterator[Callable[[], Ask]]:
    """Makes an Ask with a connection of its own: an image is a body, several are a form."""
    assert job.url is not None
    host, _, port = job.url.removeprefix("http://").partition(":")
    connections = []

    def make() -> Ask:
        connection = Connection((host, int(port)), timeout_s=60)
        connections.append(connection)

        def ask(numbers: Sequence[int]) -> None:
            answer = connection.exchange(_request([images[number] for number in numbers]))
            if answer.count(b'"predictions"') != len(numbers):
                raise ValueError(f"{len(numbers)} images were sent, and answered: {answer!r}")

        return ask

    yield make
    for connection in connections:
        connection.close()


def _request(images: Sequence[ImageFile]) -> bytes:
    if len(images) == 1:
        return post_request("/v1/classify?top_k=1", images[0].data, images[0].media_type)
    parts = [
        f'--convoy\r\nContent-Disposition: form-data; name="file"; filename="{n}"\r\n'
        f"Content-Type: {image.media_type}\r\n\r\n".encode()
        + image.data
        + b"\r\n"
        for n, image in enumerate(images)
    ]
    body = b"".join(parts) + b"--convoy--\r\n"
    return post_request("/v1/classify?top_k=1", body, "multipart/form-data; boundary=convoy")


@contextmanager
def on_engine(job: Job, images: Sequence[ImageFile]) -> Iterator[Callable[[], Ask]]:
    """The one Ask of an engine, over images decoded beforehand, as MLPerf allows."""
    classifier = load_classifier(Path(job.model), overrides={"preset": job.preset})
    limits = ImageLimits(10**9, 10**9)
    pixels = [prepare_image(p.data, classifier.preprocessing, limits).run() for p in images]
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=GROUP, threads=0)
    engine.warm_up()

    def ask(numbers: Sequence[int]) -> None:
        scores = engine.run(np.stack([pixels[number] for number in numbers]))
        if len(scores) != len(numbers):
            raise ValueError(f"{len(scores)} answers to {len(numbers)} images")

    yield lambda: ask
    engine.close()


class System:
    """LoadGen's system under test: threads that each take a group, ask, and tell it is done."""

    def __init__(self, asks: Sequence[Ask], *, merge: bool) -> None:
        """`merge`: who is free takes all that waits, up to a group, as an engine has no batcher."""
        self.failure: Exception | None = None
        self._merge = merge
        self._groups: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, args=(ask,)) for ask in asks]
        for thread in self._threads:
            thread.start()

    def issue(self, samples: list[Any]) -> None:
        """What LoadGen calls with a query."""
        for begin in range(0, len(samples), GROUP):
            self._groups.put(samples[begin : begin + GROUP])

    def close(self) -> None:
        """Let the threads end."""
        for _ in self._threads:
            self._groups.put([])
        for thread in self._threads:
            thread.join()

    def _work(self, ask: Ask) -> None:
        while group := self._groups.get():
            while self._merge and len(group) < GROUP and not self._groups.empty():
                group += self._groups.get()
            try:
                ask([sample.index for sample in group])
            except Exception as error:  # noqa: BLE001  `run` raises it; LoadGen would wait for ever
                self.failure = error
            lg.QuerySamplesComplete([lg.QuerySampleResponse(s.id, 0, 0) for s in group])


def run(job: Job) -> Result:
    """Run the scenario; raises what a request raised."""
    images = load_images(Path(job.images))[:MOST_IMAGES]
    with (over_http if job.url else on_engine)(job, images) as make:
        asks = [make() for _ in range(_CONNECTIONS[job.scenario] if job.url else 1)]
        group_s = _calibrate(asks[0], len(images), 1 if job.scenario == "SingleStream" else GROUP)
        system = System(asks, merge=job.url is None and job.scenario == "Server")
        try:
            log = _measure(_settings(job, group_s), system, len(images))
        finally:
            system.close()
    if system.failure is not None:
        raise system.failure
    return read_log(job.scenario, log)


def _calibrate(ask: Ask, images: int, group: int) -> float:
    """Seconds that a group takes when it is alone: the median of some."""
    took = []
    for turn in range(12):
        begin = perf_counter()
        ask([(turn * group + n) % images for n in range(group)])
        took.append(perf_counter() - begin)
    return float(np.median(took[2:]))


def _settings(job: Job, group_s: float) -> Any:
    settings = lg.TestSettings()
    settings.scenario = getattr(lg.TestScenario, job.scenario)
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms = round(job.seconds * 1e3)
    settings.min_query_count = 1  # MLPerf's minima are for submissions
    # LoadGen prepares as many queries as fit the time at this latency; with too few it is INVALID.
    settings.single_stream_expected_latency_ns = round(group_s * 0.5e9)
    settings.multi_stream_expected_latency_ns = round(group_s * 0.5e9)
    settings.multi_stream_samples_per_query = GROUP
    settings.server_target_qps = job.rate
    settings.server_target_latency_ns = round(job.bound_ms * 1e6)
    settings.server_target_latency_percentile = 0.99
    settings.offline_expected_qps = 1.5 * GROUP / group_s
    return settings


def _measure(settings: Any, system: System, images: int) -> str:
    """LoadGen's log, a JSON object a line behind a mark."""
    sut = lg.ConstructSUT(system.issue, lambda: None)
    samples = lg.ConstructQSL(images, images, lambda _: None, lambda _: None)
    with tempfile.TemporaryDirectory() as folder:
        output = lg.LogOutputSettings()
        output.outdir = folder
        output.copy_summary_to_stdout = False
        logs = lg.LogSettings()
        logs.log_output = output
        logs.enable_trace = False
        lg.StartTestWithLogSettings(sut, samples, settings, logs)
        log = (Path(folder) / "mlperf_log_detail.txt").read_text()
    lg.DestroyQSL(samples)
    lg.DestroySUT(sut)
    return log


# The number that MLPerf takes of each scenario.
_VALUES = {
    "SingleStream": ("result_90.00_percentile_latency_ns", 1e-6),
    "MultiStream": ("result_99.00_percentile_per_query_latency_ns", 1e-6),
    "Server": ("result_completed_samples_per_sec", 1.0),
    "Offline": ("result_samples_per_second", 1.0),
}
_CONDITIONS = {
    "result_perf_constraints_met": "latency",
    "result_min_duration_met": "duration",
    "result_min_queries_met": "queries",
    "early_stopping_met": "early stopping",  # too few queries to be sure of the percentile
}
_PERCENTILES = ("50.00", "90.00", "95.00", "97.00", "99.00", "99.90")


def read_log(scenario: str, log: str) -> Result:
    """A Result out of LoadGen's log; ValueError if it has none."""
    entries = [
        json.loads(line.removeprefix(_MARK)) for line in log.splitlines() if line.startswith(_MARK)
    ]
    values = {entry["key"]: entry["value"] for entry in entries}
    key, unit = _VALUES[scenario]
    if key not in values:
        raise ValueError(f"LoadGen gives no {key}: {log[-500:]}")
    unmet = [name for key, name in _CONDITIONS.items() if not values.get(key, True)]
    verdict = values["result_validity"]
    latency_ns = {
        f"p{float(q):g}": values[f"result_{q}_percentile_latency_ns"] for q in _PERCENTILES
    }
    latency_ns["mean"] = values["result_mean_latency_ns"]
    latency_ns["max"] = values["result_max_latency_ns"]
    return Result(
        verdict=f"{verdict}: {', '.join(unmet)}" if unmet else verdict,
        in_bound=bool(values.get("result_perf_constraints_met", True)),
        value=values[key] * unit,
        queries=values["result_query_count"],
        latency_ms={name: ns * 1e-6 for name, ns in latency_ns.items()},
    )


def main() -> None:
    """Run the job of the command line."""
    print(json.dumps(asdict(run(Job(**json.loads(sys.argv[1]))))))


if __name__ == "__main__":
    main()
