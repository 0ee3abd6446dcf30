"""Both protocols are measured with the same request."""

import json

import numpy as np
import pytest

from benchmarks.serving import protocols
from models import OutputKind
from service.api.v2.parse import parse_request
from service.grpc.infer_request import infer_request, read_message
from service.hosting.pipeline import ModelInfo


def test_both_protocols_send_the_same_request() -> None:
    info = ModelInfo("no-op", "1", (1, 1, 1), "scores", OutputKind.LOGITS, ())
    sent = protocols.file_of(b"a JPEG")
    head, _, body = protocols.v2_request(sent).partition(b"\r\n\r\n")
    length = int(head.rpartition(b": ")[2])
    assert json.loads(body[:length])
    by_http = parse_request(body, length, info, 8)
    by_grpc = infer_request(read_message(protocols.v2_message(sent)), info, 8)
    assert by_http == by_grpc
    assert by_grpc.files == [b"a JPEG"]


def test_turns_alternate_and_times_add_up() -> None:
    turns = []

    def loop(name: str) -> object:
        def run(connections: int, seconds: float) -> list[float]:
            turns.append(name)
            return [0.001 * number for number in range(1, 101)]

        return run

    loops = {name: loop(name) for name in "ab"}
    measured = protocols.measure(loops, protocols.pixels_of(1), 2.0, 2)  # type: ignore[arg-type]
    assert turns == ["a", "b", "b", "a"] * len(protocols.CONNECTIONS)
    assert [(row.target, row.connections) for row in measured[:2]] == [("a", 1), ("b", 1)]
    assert (measured[0].requests, measured[0].requests_a_second) == (200, 50)
    assert np.isclose(measured[0].p50_ms, 50.5, atol=1)


@pytest.mark.slow
def test_every_server_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    protocols.main(["--seconds", "0.3", "--rounds", "2"])
    shown = capsys.readouterr().out
    assert shown.count(protocols.BARE) == len(protocols.CONNECTIONS)
    for name in (protocols.HTTP, protocols.GRPC):
        assert shown.count(f"{name}, JPEG") == len(protocols.CONNECTIONS)
        few = 2 * len(protocols.FEW_CONNECTIONS)
        assert shown.count(f"{name}, pixels in shared memory") == few
        assert shown.count(f"{name}, pixels ") == 2 * few
