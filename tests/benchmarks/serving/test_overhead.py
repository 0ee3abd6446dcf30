import io
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from benchmarks.rows import read
from benchmarks.serving import overhead as service
from benchmarks.serving.http_client import BadAnswerError, Connection, answer_size, post_request
from benchmarks.serving.targets import CONVOY, TARGETS, UVICORN


@pytest.mark.slow
def test_every_server_is_measured_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.main(["--requests", "20", "--seconds", "0.5", "--record", str(tmp_path / "rows.json")])
    rows = read(tmp_path / "rows.json")
    assert [(row["body_bytes"], row["target"]) for row in rows] == [
        (size, target) for size in service.BODIES for target in TARGETS
    ]
    for row in rows:
        assert row["latency"]["n"] == 20
        assert 0 < row["latency"]["p20_ms"] <= row["latency"]["p50_ms"] <= row["latency"]["p80_ms"]
        assert row["throughput"]["n"] >= service.CONNECTIONS
        assert row["cpu"]
        assert row["commit"]
    assert "Convoy adds" in capsys.readouterr().out


def row(target: str, p50_ms: float, requests_a_second: float) -> service.Measurement:
    """What counts of a server."""
    latency = service.Latency(9, p50_ms, p50_ms, p50_ms, p50_ms)
    throughput = service.Throughput(8, 9, requests_a_second, 1, 1)
    return service.Measurement(target, 10_000, latency, throughput)


@pytest.mark.parametrize(
    ("p50_ms", "requests_a_second", "verdicts"),
    [(0.5, 800, ["met", "met"]), (0.51, 790, ["NOT MET", "NOT MET"])],
)
def test_what_is_promised_is_told_from_what_is_not(
    p50_ms: float, requests_a_second: float, verdicts: list[str]
) -> None:
    console = Console(file=io.StringIO(), width=200)
    others = [row(next(iter(TARGETS)), 0.2, 1000), row(UVICORN, 0.25, 500)]
    service.show([*others, row(CONVOY, p50_ms, requests_a_second)], console)
    assert isinstance(console.file, io.StringIO)
    *_, beside, added, share = console.file.getvalue().splitlines()
    assert [line.partition(":")[0] for line in (added, share)] == verdicts
    assert f"{p50_ms - 0.25:+.3f} ms at p50, {requests_a_second / 500:.0%} of" in beside


@pytest.mark.slow
def test_servers_may_be_left_out_but_the_first(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    service.main(["--requests", "20", "--seconds", "0.5", "--only", CONVOY, "--record", str(file)])
    targets = [next(iter(TARGETS)), CONVOY]
    assert [row["target"] for row in read(file)] == targets * len(service.BODIES)


def test_stock_uvicorn_is_not_convoys_connection() -> None:
    """Convoy's own server does not name itself, and uvicorn does."""
    heads = {}
    for target in (next(iter(TARGETS)), UVICORN):
        with service.serving(TARGETS[target]) as address:
            service.wait_until_ready(address)
            connection = Connection(address)
            heads[target] = connection.exchange(post_request("/", b"image", "image/jpeg")).lower()
            connection.close()
    assert [b"server: uvicorn" in head for head in heads.values()] == [False, True]


@pytest.mark.parametrize(("size", "pixels"), [(100_000, (640, 480)), (10_000, (202, 152))])
def test_the_body_is_a_readable_jpeg_of_the_size_asked_for(
    size: int, pixels: tuple[int, int]
) -> None:
    data = service.jpeg_of(size)
    assert len(data) == size
    image = Image.open(io.BytesIO(data))
    image.load()
    assert image.size == pixels


def test_an_answer_is_as_long_as_its_header_says() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    assert answer_size(answer) == len(answer)
    assert answer_size(answer[:-2]) == len(answer)
    assert answer_size(answer[:30]) is None


def test_an_answer_other_than_200_is_no_measurement() -> None:
    with pytest.raises(BadAnswerError, match="429"):
        answer_size(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n")
