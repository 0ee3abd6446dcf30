import io
import json
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from benchmarks.serving import overhead as service
from benchmarks.serving.http_client import BadAnswerError, answer_size
from benchmarks.serving.targets import CONVOY, TARGETS


def test_every_server_is_measured_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.main(["--requests", "20", "--seconds", "0.5", "--json", str(tmp_path / "rows.json")])
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["target"] for row in rows] == list(TARGETS)
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
    return service.Measurement(target, latency, service.Throughput(8, 9, requests_a_second, 1, 1))


@pytest.mark.parametrize(
    ("p50_ms", "requests_a_second", "verdicts"),
    [(0.5, 800, ["met", "met"]), (0.51, 790, ["NOT MET", "NOT MET"])],
)
def test_what_is_promised_is_told_from_what_is_not(
    p50_ms: float, requests_a_second: float, verdicts: list[str]
) -> None:
    console = Console(file=io.StringIO(), width=200)
    service.show([row("bare route", 0.2, 1000), row(CONVOY, p50_ms, requests_a_second)], console)
    assert isinstance(console.file, io.StringIO)
    told = [line.partition(":")[0] for line in console.file.getvalue().splitlines()[-2:]]
    assert told == verdicts


def test_servers_may_be_left_out_but_the_bare_route(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    service.main(["--requests", "20", "--seconds", "0.5", "--only", CONVOY, "--json", str(file)])
    assert [row["target"] for row in json.loads(file.read_text())] == ["bare route", CONVOY]


def test_the_body_is_a_readable_jpeg_of_the_size_asked_for() -> None:
    data = service.jpeg_of(100_000)
    assert len(data) == 100_000
    image = Image.open(io.BytesIO(data))
    image.load()
    assert image.size == (640, 480)


def test_an_answer_is_as_long_as_its_header_says() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    assert answer_size(answer) == len(answer)
    assert answer_size(answer[:-2]) == len(answer)
    assert answer_size(answer[:30]) is None


def test_an_answer_other_than_200_is_no_measurement() -> None:
    with pytest.raises(BadAnswerError, match="429"):
        answer_size(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n")
