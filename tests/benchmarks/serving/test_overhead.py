import io
import socket
import sys
from functools import partial
from pathlib import Path

import pytest
import uvicorn
from PIL import Image
from rich.console import Console

from benchmarks.rows import ROOT, read
from benchmarks.serving import overhead as service
from benchmarks.serving.http_client import BadAnswerError, answer_size
from benchmarks.serving.targets import BESIDE, CONVOY, TARGETS, UVICORN, serve_checkout
from tests.support import PATIENCE_S


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
    """Return the part of a server's result that is compared."""
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
    assert f"{p50_ms - 0.25:+.3f} ms ({p50_ms / 0.25 - 1:+.1%}) at p50, " in beside
    assert f"{requests_a_second / 500:.1%} of its requests/s" in beside


@pytest.mark.slow
def test_servers_may_be_left_out_but_the_first(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    service.main(["--requests", "20", "--seconds", "0.5", "--only", CONVOY, "--record", str(file)])
    targets = [next(iter(TARGETS)), CONVOY]
    assert [row["target"] for row in read(file)] == targets * len(service.BODIES)


@pytest.mark.slow
def test_another_checkout_is_measured_beside_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    few = ["--requests", "20", "--seconds", "0.5", "--only", CONVOY]
    service.main([*few, "--beside", str(ROOT), "--record", str(file)])
    targets = [next(iter(TARGETS)), CONVOY, BESIDE]
    assert [row["target"] for row in read(file)] == targets * len(service.BODIES)
    assert f"compared with {BESIDE}: " in capsys.readouterr().out


def test_another_checkout_runs_its_own_code(tmp_path: Path) -> None:
    """Return a checkout whose server states the location of its code in its answer."""
    package = tmp_path / "benchmarks" / "serving"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "targets.py").write_text(
        "CONVOY = 'Convoy'\n"
        "def serve(listener):\n"
        "    client, _ = listener.accept()\n"
        "    client.sendall(__file__.encode())\n"
        "    client.close()\n"
        "TARGETS = {CONVOY: serve}\n"
    )
    with (
        service.serving(partial(serve_checkout, tmp_path)) as address,
        socket.create_connection(address, PATIENCE_S) as client,
    ):
        said = b"".join(iter(lambda: client.recv(1000), b"")).decode()
    assert said == str(package / "targets.py")


def test_stock_uvicorn_is_not_convoys_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each starts as usual: Convoy's server does not name itself, and uvicorn does."""
    begun = []

    def begin(server: uvicorn.Server, sockets: object = None) -> None:
        server.config.load()
        begun.append((server.config.http_protocol_class.__module__, server.config.server_header))
        server.started = True

    def command_line(_: str, words: list[str]) -> None:
        assert words[1:3] == ["-m", "uvicorn"]
        uvicorn.main(words[3:], standalone_mode=False)

    monkeypatch.setattr(uvicorn.Server, "run", begin)
    monkeypatch.setattr("os.execv", command_line)
    monkeypatch.setattr("logging.config.dictConfig", lambda _: None)  # uvicorn's, of this process
    monkeypatch.setattr("sys.path", [*sys.path])
    for target in (next(iter(TARGETS)), UVICORN):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            TARGETS[target](listener)
    (convoys, named), (stock, named_too) = begun
    assert (convoys, named) == ("service.http.connection", False)
    assert (stock.partition(".")[0], named_too) == ("uvicorn", True)


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
