import io
import json
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import service
from benchmarks.http_client import BadAnswerError, answer_size
from benchmarks.targets import TARGETS


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


def test_the_body_is_a_readable_jpeg_of_the_size_asked_for() -> None:
    data = service.jpeg_of(100_000)
    assert len(data) == 100_000
    picture = Image.open(io.BytesIO(data))
    picture.load()
    assert picture.size == (640, 480)


def test_an_answer_is_as_long_as_its_header_says() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    assert answer_size(answer) == len(answer)
    assert answer_size(answer[:-2]) == len(answer)
    assert answer_size(answer[:30]) is None


def test_an_answer_other_than_200_is_no_measurement() -> None:
    with pytest.raises(BadAnswerError, match="429"):
        answer_size(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n")
