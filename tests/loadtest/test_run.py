"""Whole load tests on a real server and on scripted ones."""

import asyncio
import json
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from PIL import Image
from rich.progress import Progress

from loadtest import command
from loadtest.journal import NOT_SENT
from loadtest.loops import Arrivals, arrivals
from tests.loadtest.conftest import SHORT
from tests.service.whole.test_server_process import Server, running
from tests.support import PATIENCE_S
from tests.support.command_line import Run
from tests.support.servers.control import until
from tests.support.servers.forked import CONVOY, Forked
from tests.support.servers.scripted_server import honest, scripted


def test_an_open_loop_on_the_real_server_is_measured_shown_written_and_drawn(
    loadtest: Run, tmp_path: Path
) -> None:
    files = ("--json", tmp_path / "it.json", "--plot", tmp_path / "it.png")
    rates = ("--rate", "20", "--rate", "40")  # fewer in all than the server lets wait
    with running() as server:
        url = f"http://127.0.0.1:{server.port}"
        status, out, error = loadtest(url, *rates, *SHORT, "--verify", *files)
        served = server.metric('convoy_requests_total{model="fake",status="200"}')
    assert (status, error) == (0, "")
    written = json.loads((tmp_path / "it.json").read_text())
    assert written["url"] == url
    assert written["images"] == 10
    assert [load["load"] for load in written["loads"]] == [
        {"rate": 20, "clients": None},
        {"rate": 40, "clients": None},
    ]
    for load in written["loads"]:
        moments = arrivals(Arrivals.POISSON, load["load"]["rate"], 0.5, seed=0)
        assert load["requests"] == (moments >= 0.1).sum()
        assert load["answered"] == load["requests"]
        assert load["errors"] == {}
        latency = load["latency_ms"]
        assert 0 < latency["p50"] <= latency["max"]
        assert (latency["p99"], latency["p99.9"]) == (None, None)  # of so few answers
        server_ms = sum(load["phases_ms"][name]["p50"] for name in load["phases_ms"])
        assert 0 < server_ms < latency["max"]
        assert load["send_lag_ms"]["p50"] >= 0
        assert load["client_cpu"] > 0
    # One answer a image for comparison, and whatever was asked since.
    ran = sum(int(size) * n for load in written["loads"] for size, n in load["batch_sizes"].items())
    assert ran == served - 10
    assert "20/s " in out
    assert "compute ms" in out
    sizes = written["loads"][1]["batch_sizes"].items()
    assert f"batches at 40/s: {', '.join(f'{size} ×{n}' for size, n in sizes)}" in out
    with Image.open(tmp_path / "it.png") as drawn:
        assert drawn.size == (960, 600)


def test_a_closed_loop_on_the_real_server(loadtest: Run, tmp_path: Path) -> None:
    with running("--delay-s", "0.02") as server:
        url = f"http://127.0.0.1:{server.port}"
        load = ("--clients", "3", "--duration", "3s", "--warmup", "100ms")
        status, out, _ = loadtest(url, *load, "--json", tmp_path / "it.json")
    assert status == 0
    assert "3 clients" in out
    (load,) = json.loads((tmp_path / "it.json").read_text())["loads"]
    assert load["load"] == {"rate": None, "clients": 3}
    assert load["latency_ms"]["p50"] >= 20
    assert 0 < load["throughput"] <= 3 / 0.02


def test_a_server_that_dies_causes_errors_but_does_not_end_the_test(loadtest: Run) -> None:
    def die(server: Server) -> None:
        until(lambda: server.metric('convoy_requests_total{model="fake",status="200"}') > 5)
        server.process.kill()

    with running() as server:
        threading.Thread(target=die, args=(server,)).start()
        url = f"http://127.0.0.1:{server.port}"
        status, out, error = loadtest(url, "--rate", "30", "--duration", "3s", "--warmup", "0")
    assert (status, error) == (1, "")
    assert re.search(r"errors: .*connection refused ×\d", out)
    assert int(re.findall(r"30/s +(\d+)", out)[0]) > 60  # it went on to the end


def test_requests_beyond_the_limit_on_outstanding_ones_are_not_sent(loadtest: Run) -> None:
    inside = most = 0

    async def slow(body: bytes, number: int) -> web.Response:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.5 if number else 0)
        inside -= 1
        return await honest(body, number)

    with scripted(slow) as seen:
        load = (*SHORT, "--warmup", "0", "--rate", "100", "--max-outstanding", "5")
        status, out, _ = loadtest(seen.url, *load)
    assert status == 1
    assert most <= 5
    (unsent,) = map(int, re.findall(rf"errors: {NOT_SENT} ×(\d+)", out))
    # One request shows first whether the server answers.
    assert len(seen.bodies) == 1 + len(arrivals(Arrivals.POISSON, 100, 0.4)) - unsent


def test_a_stall_shows_in_an_open_loop_over_http(loadtest: Run, tmp_path: Path) -> None:
    async def stalls_once(body: bytes, number: int) -> web.Response:
        if number == 100:
            time.sleep(0.3)  # the whole server, as a collection of garbage would
        return await honest(body, number)

    files = ("--json", tmp_path / "it.json")
    with scripted(stalls_once) as seen:
        load = ("--rate", "400", "--duration", "1s", "--warmup", "0")
        loadtest(seen.url, *load, *files)
    (written,) = json.loads((tmp_path / "it.json").read_text())["loads"]
    # Three in ten requests came in those 0.3 s, a third of them in its first 0.1 s.
    assert written["latency_ms"]["p90"] > 180
    assert written["latency_ms"]["max"] > 290


def interrupted(images: Path, warmup: str) -> tuple[int, str, str]:
    """Return exit status, output and errors of a test of 60 s that is interrupted after 30
    requests."""
    with scripted() as seen:
        process = Forked(
            CONVOY,
            *("loadtest", seen.url, "--images", images, "--rate", "100"),
            *("--warmup", warmup, "--duration", "60s"),
            environ={"COLUMNS": "200"},
        )
        try:
            until(lambda: len(seen.bodies) >= 30)
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.communicate()
    assert process.returncode is not None
    return process.returncode, out, error


def test_ctrl_c_shows_the_results_so_far(images: Path) -> None:
    status, out, error = interrupted(images, warmup="0")
    assert (status, error) == (130, "")
    assert re.search(r"100/s: ended after \d+\.\d s", out)
    (requests,) = re.findall(r"100/s +(\d+)", out)
    assert int(requests) >= 25


def test_ctrl_c_in_the_warm_up_shows_an_empty_window(images: Path) -> None:
    status, out, error = interrupted(images, warmup="60s")
    assert (status, error) == (130, "")
    assert "100/s: ended after 0.0 s" in out


class Drawn(Progress):
    """A display that is drawn at each update, without regard to the time."""

    def update(self, *arguments: Any, **options: Any) -> None:
        super().update(*arguments, **{**options, "refresh": True})


def test_a_terminal_shows_progress(loadtest: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich take a pipe for one
    monkeypatch.setattr(command, "Progress", Drawn)
    with scripted() as seen:
        _, _, error = loadtest(seen.url, "--rate", "50", "--rate", "100", *SHORT)
    told = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", error)
    assert re.search(r"50/s: \d+ answers, p50 [\d.]+, p99 [\d.]+ ms [▁-█]+", told)
    assert re.search(r"100/s: p50 [\d.]+ ms, p99 - ms, 0 errors", told)
