"""`convoy loadtest` from its command line, against servers on loopback that behave and do not."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web
from PIL import Image

from loadtest.journal import MIXED_UP, NOT_SENT
from loadtest.pictures import SAMPLES
from loadtest.schedule import Arrivals, arrivals
from tests.loadtest.conftest import SHORT
from tests.service.whole.test_server_process import Server, running, until
from tests.support.command_line import Run
from tests.support.servers.scripted_server import Seen, answer, honest, scripted


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
    assert written["pictures"] == 10
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
        assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["p99.9"]
        assert latency["p99.9"] <= latency["max"]
        server_ms = sum(load["phases_ms"][name]["p50"] for name in load["phases_ms"])
        assert 0 < server_ms < latency["max"]
        assert load["send_lag_ms"]["p50"] >= 0
        assert load["client_cpu"] > 0
    # One answer a picture for comparison, and whatever was asked since.
    ran = sum(int(size) * n for load in written["loads"] for size, n in load["batch_sizes"].items())
    assert ran == served - 10
    assert "20/s " in out
    assert "compute ms" in out
    assert "batches: 1 ×" in out
    with Image.open(tmp_path / "it.png") as drawn:
        assert drawn.size == (960, 600)


def test_a_closed_loop_on_the_real_server(loadtest: Run, tmp_path: Path) -> None:
    with running("--delay-s", "0.02") as server:
        url = f"http://127.0.0.1:{server.port}"
        status, out, _ = loadtest(url, "--clients", "3", *SHORT, "--json", tmp_path / "it.json")
    assert status == 0
    assert "3 clients" in out
    (load,) = json.loads((tmp_path / "it.json").read_text())["loads"]
    assert load["load"] == {"rate": None, "clients": 3}
    assert load["latency_ms"]["p50"] >= 20
    assert 0 < load["throughput"] <= 3 / 0.02


def test_without_a_load_there_are_eight_clients(loadtest: Run) -> None:
    with scripted() as seen:
        status, out, _ = loadtest(seen.url, *SHORT)
    assert status == 0
    assert "8 clients" in out


def test_pictures_take_turns_with_their_types_and_the_headers_asked_for(loadtest: Run) -> None:
    with scripted() as seen:
        options = ("--clients", "1", "--header", "Authorization: Bearer x y")
        assert loadtest(seen.url, *SHORT, *options)[0] == 0
    # The first one was sent to see whether anybody answers.
    digits = [int(body) for body in seen.bodies[1:]]
    assert digits == [n % 10 for n in range(len(digits))]
    assert {head["Content-Type"] for head in seen.headers} == {"image/png"}
    assert {head["Authorization"] for head in seen.headers} == {"Bearer x y"}


def test_a_model_is_asked_by_its_name(loadtest: Run) -> None:
    with scripted(path="/under/v1/models/a b/classify") as seen:
        assert loadtest(f"{seen.url}/under/", *SHORT, "--model", "a b")[0] == 0
        assert len(seen.bodies) > 1


def test_samples_are_sent_with_their_types(loadtest: Run) -> None:
    async def any_picture(_: bytes, __: int) -> web.Response:
        return answer(1)

    with scripted(any_picture) as seen:
        assert loadtest(seen.url, *SHORT, "--images", SAMPLES)[0] == 0
    kinds = {head["Content-Type"] for head in seen.headers}
    assert kinds == {"image/png", "image/jpeg", "image/webp"}


def test_answers_of_other_pictures_are_found_out(loadtest: Run) -> None:
    async def swaps(body: bytes, number: int) -> web.Response:
        await asyncio.sleep(0.002)
        return answer((int(body) + (number > 10 and number % 50 == 0)) % 10)

    with scripted(swaps) as seen:
        status, out, _ = loadtest(seen.url, *SHORT, "--rate", "500", "--verify")
        assert status == 1
        assert re.search(rf"errors: {MIXED_UP} ×\d", out)
        # A single one is enough, whatever share of errors is allowed.
        assert loadtest(seen.url, *SHORT, "--verify", "--max-errors", "1")[0] == 1
        status, out, _ = loadtest(seen.url, *SHORT, "--rate", "500")
    assert status == 0
    assert MIXED_UP not in out


def test_every_kind_of_error_is_counted_by_its_name(loadtest: Run, tmp_path: Path) -> None:
    async def troubled(body: bytes, number: int) -> web.Response:
        match number % 5 if number else 0:
            case 1:
                return answer(1, status=429)
            case 2:
                return web.Response(text="hello")
            case 3:
                await asyncio.sleep(1)
            case 4:
                return web.Response(status=503)
        return await honest(body, number)

    with scripted(troubled) as seen:
        options = ("--rate", "200", "--timeout", "300ms", "--json", tmp_path / "it.json")
        status, out, _ = loadtest(seen.url, *SHORT, *options)
    assert status == 1
    (load,) = json.loads((tmp_path / "it.json").read_text())["loads"]
    assert set(load["errors"]) >= {"429", "503", "bad answer", "timed out"}
    assert sum(load["errors"].values()) + load["answered"] == load["requests"]
    assert load["error_share"] > 0.75
    for kind, count in load["errors"].items():
        assert f"{kind} ×{count}" in out


def test_a_share_of_errors_may_be_allowed(loadtest: Run) -> None:
    async def one_in_ten(body: bytes, number: int) -> web.Response:
        return answer(int(body), status=429 if number % 10 == 5 else 200)

    with scripted(one_in_ten) as seen:
        load = ("--rate", "300", *SHORT)
        assert loadtest(seen.url, *load)[0] == 1
        assert loadtest(seen.url, *load, "--max-errors", "0.2")[0] == 0


def test_a_server_that_dies_meanwhile_is_errors_and_not_the_end(loadtest: Run) -> None:
    def die(server: Server) -> None:
        until(lambda: server.metric('convoy_requests_total{model="fake",status="200"}') > 20)
        server.process.kill()

    with running() as server:
        threading.Thread(target=die, args=(server,)).start()
        url = f"http://127.0.0.1:{server.port}"
        status, out, error = loadtest(url, "--rate", "100", "--duration", "1s", "--warmup", "0")
    assert (status, error) == (1, "")
    assert re.search(r"errors: .*connection refused ×\d", out)
    assert int(re.findall(r"100/s +(\d+)", out)[0]) > 60  # it went on to the end


def test_more_outstanding_than_allowed_are_not_sent(loadtest: Run) -> None:
    async def slow(body: bytes, number: int) -> web.Response:
        await asyncio.sleep(0.5 if number else 0)
        return await honest(body, number)

    with scripted(slow) as seen:
        status, out, _ = loadtest(seen.url, *SHORT, "--rate", "100", "--max-outstanding", "5")
        assert len(seen.bodies) < 20
    assert status == 1
    assert f"errors: {NOT_SENT} ×" in out


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


def test_answers_in_time_are_counted(loadtest: Run) -> None:
    async def every_other_is_slow(body: bytes, number: int) -> web.Response:
        await asyncio.sleep(0.25 * (number % 2))
        return await honest(body, number)

    with scripted(every_other_is_slow) as seen:
        _, out, _ = loadtest(seen.url, *SHORT, "--rate", "100", "--deadline", "200ms")
    in_time, total = map(int, re.findall(r"(\d+) of (\d+) in time", out)[0])
    assert 0 < in_time <= 0.6 * total


def test_the_server_is_told_the_deadline_and_whom_it_refuses_is_counted_apart(
    loadtest: Run, tmp_path: Path
) -> None:
    async def refuses_every_third(body: bytes, number: int) -> web.Response:
        return answer(0, status=504) if number % 3 == 2 else await honest(body, number)

    def told(seen: Seen) -> list[str | None]:
        return [headers.get("X-Timeout-Ms") for headers in seen.headers]

    load = (*SHORT, "--rate", "100", "--json", tmp_path / "it.json")
    with scripted(refuses_every_third) as seen:
        status, out, _ = loadtest(seen.url, *load, "--deadline", "62.5ms")
    assert told(seen)[0] is None, "it is tried out first"
    assert set(told(seen)[1:]) == {"62.5"}
    (written,) = json.loads((tmp_path / "it.json").read_text())["loads"]
    assert written["refused"] > 0
    assert written["errors"] == {}
    assert status == 0
    assert f"{written['refused']} refused in time" in out
    with scripted(refuses_every_third) as seen:
        status, out, _ = loadtest(seen.url, *load)
    assert set(told(seen)) == {None}
    assert status == 1
    assert "errors: 504" in out


def test_a_bound_that_is_not_kept_is_exit_status_1(loadtest: Run) -> None:
    async def slow(body: bytes, number: int) -> web.Response:
        await asyncio.sleep(0.03)
        return await honest(body, number)

    with scripted(slow) as seen:
        load = ("--clients", "1", *SHORT)
        assert loadtest(seen.url, *load, "--p99", "20ms")[0] == 1
        assert loadtest(seen.url, *load, "--p99", "5s")[0] == 0


def test_the_highest_rate_within_a_bound_is_searched_for(loadtest: Run, tmp_path: Path) -> None:
    lock = asyncio.Lock()

    async def one_at_a_time(body: bytes, number: int) -> web.Response:
        if lock.locked():  # one is served, and nobody may wait
            return answer(0, status=429)
        async with lock:
            await asyncio.sleep(0.01)
        return await honest(body, number)

    files = ("--json", tmp_path / "it.json", "--plot", tmp_path / "it.png")
    with scripted(one_at_a_time) as seen:
        load = ("--arrivals", "even", "--rate", "20", "--duration", "200ms", "--warmup", "0")
        status, out, _ = loadtest(seen.url, "--find-rate", "--p99", "5s", *load, *files)
    assert status == 0
    written = json.loads((tmp_path / "it.json").read_text())
    # Each takes 10 ms, so evenly spread at most 100 a second fit; on a busy machine fewer.
    assert 0 < written["highest_rate"] <= 100
    assert f"no errors: {written['highest_rate']:.4g}/s" in out
    assert len(written["loads"]) >= 3
    assert (tmp_path / "it.png").stat().st_size > 10_000


def test_a_bound_that_no_rate_keeps_is_exit_status_1(loadtest: Run) -> None:
    with scripted() as seen:
        load = ("--rate", "200", "--duration", "50ms", "--warmup", "0")
        status, out, _ = loadtest(seen.url, "--find-rate", "--p99", "1us", *load)
    assert status == 1
    assert "no rate that was tried had p99 within 0.001 ms" in out


def test_nobody_there_is_one_clear_line(loadtest: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    status, out, error = loadtest(f"http://127.0.0.1:{port}", *SHORT)
    assert (status, out) == (1, "")
    assert error == f"Error: cannot ask http://127.0.0.1:{port}/v1/classify: connection refused\n"


def test_a_server_that_does_not_answer_is_one_clear_line(loadtest: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        status, _, error = loadtest(url, *SHORT, "--timeout", "200ms")
    assert status == 1
    assert error == f"Error: {url}/v1/classify did not answer in 0.2 s\n"


@pytest.mark.parametrize(
    ("response", "says"),
    [
        (lambda: answer(1, status=429), "answers 0.png with status 429: {"),
        (lambda: web.Response(text="<html>"), "not an answer to one picture: b'<html>'"),
    ],
)
def test_a_server_that_refuses_the_first_picture_is_one_clear_line(
    loadtest: Run, response: Callable[[], web.Response], says: str
) -> None:
    async def refuses(_: bytes, __: int) -> web.Response:
        return response()

    with scripted(refuses) as seen:
        status, out, error = loadtest(seen.url, *SHORT)
    assert (status, out) == (1, "")
    (line,) = error.splitlines()
    assert says in line


def interrupted(pictures: Path, warmup: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a test of 60 s that is ended after 30 requests."""
    with scripted() as seen:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", "from service.cli import main; main()", "loadtest"),
                *(seen.url, "--images", str(pictures), "--rate", "100"),
                *("--warmup", warmup, "--duration", "60s"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        )
        try:
            deadline = time.monotonic() + 20
            while len(seen.bodies) < 30:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=10)
        finally:
            process.kill()
            process.communicate()
    return process.returncode, out, error


def test_ctrl_c_shows_what_was_measured_so_far(pictures: Path) -> None:
    status, out, error = interrupted(pictures, warmup="0")
    assert (status, error) == (130, "")
    assert re.search(r"100/s: ended after \d+\.\d s", out)
    (requests,) = re.findall(r"100/s +(\d+)", out)
    assert int(requests) >= 25


def test_ctrl_c_in_the_warm_up_shows_that_nothing_was_measured(pictures: Path) -> None:
    status, out, error = interrupted(pictures, warmup="60s")
    assert (status, error) == (130, "")
    assert "100/s: ended after 0.0 s" in out


def test_a_terminal_is_told_how_far_it_is(loadtest: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes rich take a pipe for one
    with scripted() as seen:
        _, _, error = loadtest(seen.url, "--rate", "50", "--rate", "100", *SHORT)
    told = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", error)
    assert re.search(r"50/s: \d+ answers, 0 errors", told)
    assert re.search(r"100/s: p99 \d+\.\d+ ms, 0 errors", told)
