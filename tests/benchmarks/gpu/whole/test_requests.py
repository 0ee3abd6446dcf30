"""A unit of requests becomes a row: the requests are sent to a server on the CPU."""

import pytest

from benchmarks.gpu.measure import _requests
from benchmarks.gpu.units import JPEG, PIXELS, Unit
from tests.support.networks import needs_shared


@needs_shared
@pytest.mark.parametrize(
    "sent",
    [pytest.param(sent, marks=[pytest.mark.slow] * (sent != "JPEG")) for sent in (JPEG, PIXELS)],
)
def test_requests_are_measured_over_http(sent: str) -> None:
    (row,) = _requests("cpu", load_s=1.0)(Unit("http", sent, 2, "convoy"))
    assert row["sent"] == sent
    assert row["connections"] == 2
    assert row["requests"] > 2
    assert 0 < row["p50_ms"] <= row["p99_ms"]
