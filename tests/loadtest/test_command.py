"""Options of `convoy loadtest` and its exit status."""

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest
from aiohttp import web

from tests.loadtest.conftest import SHORT
from tests.support.command_line import Run
from tests.support.servers.scripted_server import answer, honest, scripted


@pytest.mark.usefixtures("counted")
def test_the_default_load_is_eight_clients(loadtest: Run) -> None:
    with scripted() as seen:
        status, out, _ = loadtest(seen.url, *SHORT)
    assert status == 0
    assert "8 clients" in out


def test_a_share_of_errors_may_be_allowed(loadtest: Run) -> None:
    async def one_in_ten(body: bytes, number: int) -> web.Response:
        return answer(int(body), status=429 if number % 10 == 5 else 200)

    with scripted(one_in_ten) as seen:
        load = ("--rate", "300", *SHORT)
        assert loadtest(seen.url, *load)[0] == 1
        assert loadtest(seen.url, *load, "--max-errors", "0.2")[0] == 0


def test_answers_in_time_are_counted(loadtest: Run) -> None:
    async def every_other_is_slow(body: bytes, number: int) -> web.Response:
        await asyncio.sleep(3.25 * (number % 2))
        return await honest(body, number)

    with scripted(every_other_is_slow) as seen:
        _, out, _ = loadtest(seen.url, *SHORT, "--rate", "100", "--deadline", "3s")
    in_time, total = map(int, re.findall(r"(\d+) of (\d+) in time", out)[0])
    assert 0 < in_time <= 0.6 * total


def test_a_bound_that_is_not_kept_is_exit_status_1(loadtest: Run) -> None:
    async def slow(body: bytes, number: int) -> web.Response:
        await asyncio.sleep(0.03)
        return await honest(body, number)

    with scripted(slow) as seen:
        load = ("--rate", "20", *SHORT)
        assert loadtest(seen.url, *load, "--p99", "20ms")[0] == 1
        assert loadtest(seen.url, *load, "--p99", "60s")[0] == 0


def test_the_highest_rate_within_a_bound_is_searched_for(loadtest: Run, tmp_path: Path) -> None:
    lock = asyncio.Lock()

    async def one_at_a_time(body: bytes, number: int) -> web.Response:
        if lock.locked():  # no request may wait
            return answer(0, status=429)
        async with lock:
            await asyncio.sleep(0.01)
        return await honest(body, number)

    files = ("--json", tmp_path / "it.json", "--plot", tmp_path / "it.png")
    with scripted(one_at_a_time) as seen:
        load = ("--arrivals", "even", "--rate", "20", "--duration", "200ms", "--warmup", "0")
        status, out, _ = loadtest(seen.url, "--find-rate", "--p99", "60s", *load, *files)
    assert status == 0
    written = json.loads((tmp_path / "it.json").read_text())
    # Each takes 10 ms, so evenly spread at most 100 a second fit; on a busy machine fewer.
    assert 0 < written["highest_rate"] <= 100
    assert f"no errors: {written['highest_rate']:.4g}/s" in out
    assert len(written["loads"]) >= 3
    assert (tmp_path / "it.png").stat().st_size > 10_000


@pytest.mark.usefixtures("counted")
def test_a_run_is_reported_beside_earlier_ones(loadtest: Run, tmp_path: Path) -> None:
    before, report = tmp_path / "before.json", tmp_path / "report.html"
    with scripted() as seen:
        assert loadtest(seen.url, *SHORT, "--json", before)[0] == 0
        assert loadtest(seen.url, *SHORT, "--beside", before, "--report", report)[0] == 0
    page = report.read_text()
    assert "<h2>this run: scripted</h2>" in page
    assert "<h2>before: scripted</h2>" in page


def test_a_plot_of_a_kind_that_does_not_exist_is_exit_status_2(
    loadtest: Run, tmp_path: Path
) -> None:
    with scripted() as seen:
        status, _, error = loadtest(seen.url, *SHORT, "--plot", tmp_path / "it.docx")
    assert status == 2
    assert "'docx' is not supported" in error


def test_a_bound_that_no_rate_keeps_is_exit_status_1(loadtest: Run) -> None:
    with scripted() as seen:
        load = ("--rate", "200", "--duration", "50ms", "--warmup", "0")
        status, out, _ = loadtest(seen.url, "--find-rate", "--p99", "1us", *load)
    assert status == 1
    assert "no rate had p99 within 0.001 ms" in out


def test_an_address_without_a_scheme_is_one_of_http(loadtest: Run) -> None:
    status, _, error = loadtest("localhost:1", "--timeout", "1s")
    assert status == 1
    assert "http://localhost:1" in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ftp://x"], "ftp://x is not a server's address, such as http://127.0.0.1:8000"),
        (["http://"], "is not a server's address"),
        (["http://x:port"], "is not a server's address"),
        (["http://x/?a=b"], "is not a server's address"),
        (["http://x", "--p99", "soon"], "'--p99': soon is not a time, such as 50ms"),
        (["http://x", "--duration", "0s"], "'--duration': 0s must be longer"),
        (["http://x", "--duration", "-1s"], "'--duration': -1s is not a time"),
        (["http://x", "--rate", "0"], "--rate"),
        (["http://x", "--clients", "0"], "--clients"),
        (["http://x", "--rate", "5", "--clients", "5"], "--clients cannot be combined with --rate"),
        (["http://x", "--find-rate"], "--find-rate needs a bound, such as --p99 50ms"),
        (["http://x", "--find-rate", "--p99", "1s", "--rate", "1", "--rate", "2"], "single --rate"),
        (["http://x", "--header", "nonsense"], "write 'Name: value'"),
        (["http://x", "--header", "A: b\r\nC: d"], "write 'Name: value'"),
        (["http://x", "--header", "A b: c"], "write 'Name: value'"),
    ],
)
def test_an_invalid_command_line_is_exit_status_2(
    loadtest: Run, arguments: list[str], says: str
) -> None:
    status, out, error = loadtest(*arguments)
    assert (status, out) == (2, "")
    assert says in error


@pytest.mark.parametrize("package", ["aiohttp", "matplotlib"])
def test_a_missing_package_is_one_clear_line(
    loadtest: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    status, _, error = loadtest("http://127.0.0.1:1", "--plot", tmp_path / "it.png")
    assert status == 1
    assert f"Error: {package}: not installed" in error
    assert "'.[loadtest]'" in error
