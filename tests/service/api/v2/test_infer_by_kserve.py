"""KServe's own client, unchanged, against a real server process, by HTTP and gRPC.

It needs a Python of its own, which KSERVE_PYTHON names:

    python3 -m venv kserve && kserve/bin/pip install kserve==0.21.0
    KSERVE_PYTHON=kserve/bin/python pytest tests/service/api/v2/test_infer_by_kserve.py
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.several_models import SAMPLES

PYTHON = os.environ.get("KSERVE_PYTHON", "")
CALLS = Path(__file__).parents[3] / "support" / "service" / "kserve_calls.py"

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="KSERVE_PYTHON names no Python that has the package kserve"
)


@pytest.fixture(scope="module")
def answers(addresses: dict[str, str]) -> dict[str, Any]:
    """What KServe's client was answered, by protocol."""
    command = [PYTHON, str(CALLS), addresses["http"], addresses["grpc"], str(SAMPLES[3])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_kserves_client_is_answered_unchanged(answers: dict[str, Any], protocol: str) -> None:
    found = answers[protocol]
    assert found["health"] == [True, True, True]
    amounts = [[10.0, 20.0, 30.0]] * 2
    for form in ("bytes", "numbers"):
        assert found[form] == ["channels.v2", "amount", "FP32", [2, 3], amounts]
    model, output, datatype, shape, ((*scores,),) = found["a file"]
    assert (model, output, datatype, shape) == ("digits", "logits", "FP32", [1, 10])
    assert scores.index(max(scores)) == 3
    assert "unknown model: 'no'" in found["no such model"]


def test_both_protocols_give_the_same_scores(answers: dict[str, Any]) -> None:
    by_http, by_grpc = answers["http"], answers["grpc"]
    for form in ("bytes", "numbers", "a file"):
        assert by_http[form] == by_grpc[form]
