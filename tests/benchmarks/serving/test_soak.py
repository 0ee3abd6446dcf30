"""The soak: a healthy server passes it, and each possible failure is found."""

import asyncio
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from benchmarks.rows import read
from benchmarks.serving import soak
from benchmarks.serving.soak import Process, Run, broken
from benchmarks.serving.soak_clients import LEFT, NOISE_REFUSED
from loadtest.images import ImageFile
from loadtest.journal import MIXED_UP, NOT_SENT, OK
from tests.support.counted_clock import CountedClock
from tests.support.servers.scripted_server import answer, scripted

DIGITS = [ImageFile(f"{n}.png", f"{n}{'.' * 60}".encode(), "image/png") for n in range(10)]


SWAPPED = {"swap_every_s": 1.0, "embeddings": 9}


def healthy() -> Run:
    """Return the result of a run without failures."""
    return Run(
        seconds=10.0,
        outcomes=Counter({OK: 900, LEFT: 80, NOISE_REFUSED: 20}),
        asked_before=50,
        counted={"200": 990, "499": 40, "400": 20},
        memory=[100, 110, *[200] * 18],
        before=Process(200, 7, 14),
        after=Process(200, 7, 14),
        exit_status=0,
    )


def test_nothing_is_wrong_with_a_healthy_run() -> None:
    assert broken(healthy(), 0.02) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outcomes": Counter({OK: 900, LEFT: 80, MIXED_UP: 1})}, "1 requests ended with: mixed"),
        ({"outcomes": Counter({OK: 900, LEFT: 80, "timed out": 2})}, "2 requests ended with: tim"),
        ({"outcomes": Counter({OK: 900, LEFT: 80, NOT_SENT: 99})}, "could not be sent"),
        ({"counted": {"200": 949}}, "counted 949 answers, but 950 arrived"),
        ({"counted": {"200": 1031}}, "counted 1031 answers, but 950 arrived, and 80 clients"),
        ({"counted": {"200": 990, "503": 1}}, "1 answers with status 503"),
        ({"inside": 1.0}, "1 images are still in the server"),
        ({"memory": [100, 110, *[200] * 9, *[210] * 9]}, "memory grew by 5.0%"),
        ({"after": Process(200, 8, 14)}, "threads grew from 7 to 8"),
        ({"after": Process(200, 7, 15)}, "open files grew from 14 to 15"),
        ({"exit_status": 1}, "with status 1"),
        ({"failed_swaps": ["it is no ONNX"]}, "a swap failed: it is no ONNX"),
        (
            {**SWAPPED, "swaps": 9, "versions": 1, "refused_swaps": 3},
            "9 swaps, but only 1 versions gave answers",
        ),
        (
            {**SWAPPED, "swaps": 9, "versions": 6},
            "9 swaps, but no bad version was refused",
        ),
        ({**SWAPPED, "embeddings": 0}, "no embedding was answered"),
    ],
)
def test_whatever_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    run = healthy()
    for name, value in changes.items():
        setattr(run, name, value)
    (found,) = broken(run, 0.02)
    assert message in found


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock for soaks: the number of requests does not depend on the machine."""
    monkeypatch.setattr(soak, "precise_clock", lambda: nullcontext(CountedClock()))


@pytest.mark.usefixtures("counted")
def test_a_server_that_mixes_answers_up_is_found_out() -> None:
    async def mixing(body: bytes, number: int) -> web.Response:
        digit = body[:1]
        if not digit.isdigit() or len(body) != 61:
            return answer(0, status=400)
        return answer((int(digit) + (number % 50 == 49)) % 10)

    run = Run(seconds=2.0, rate=100.0)
    with scripted(mixing) as server:
        asyncio.run(soak.soak(server.url, DIGITS, run))
    assert run.outcomes[MIXED_UP] >= 2
    assert run.outcomes[OK] > 100
    assert run.outcomes[LEFT] >= 10
    assert any("mixed up" in each for each in broken(run, 0.02))


@pytest.mark.usefixtures("counted")
def test_a_server_that_fails_now_and_then_is_found_out() -> None:
    async def failing(body: bytes, number: int) -> web.Response:
        if not body[:1].isdigit() or len(body) != 61:
            return answer(0, status=400)
        return answer(int(body[:1]), status=500 if number % 40 == 39 else 200)

    run = Run(seconds=1.5, rate=100.0)
    with scripted(failing) as server:
        asyncio.run(soak.soak(server.url, DIGITS, run))
    assert run.outcomes["500"] >= 1
    assert any("ended with: 500" in each for each in broken(run, 0.02))


@pytest.mark.slow
def test_the_real_server_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "row.json"
    # At a fixed, low rate: what a busy machine can do is not what is tested here. Its memory has
    # not settled after so short a time.
    options = ["--seconds", "5", "--rate", "60", "--most-growth", "0.5", "--record", str(file)]
    status = soak.main([*options, "--", "--threads", "1"])
    (row,) = read(file)
    assert status == 0, row["broken"]
    assert row["outcomes"][OK] > 100
    assert row["outcomes"][LEFT] > 5
    assert row["outcomes"][NOISE_REFUSED] > 0
    assert row["counted"]["499"] > 0
    assert "exit status" in capsys.readouterr().out


@pytest.mark.slow
def test_the_real_server_passes_while_its_model_changes(tmp_path: Path) -> None:
    file = tmp_path / "row.json"
    options = ["--seconds", "20", "--rate", "60", "--most-growth", "0.5", "--swaps", "3"]
    status = soak.main([*options, "--record", str(file), "--", "--threads", "1"])
    (row,) = read(file)
    assert status == 0, row["broken"]
    assert row["swaps"] >= 3
    assert row["refused_swaps"] >= 1
    assert row["embeddings"] > 10
    assert row["versions"] >= 3
    assert row["outcomes"][OK] > 300
