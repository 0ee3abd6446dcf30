"""The clients of other servers, unchanged and pinned, with a real server process.

Each client is installed once from its registry into a separate environment under `.cache/clients`.
Triton's two example programs are not in any package, so they come from a commit of its repository.
perf_analyzer is tested in test_infer_endpoint_by_perf_analyzer.py, because its wheel needs glibc
2.38.
"""

import hashlib
import json
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.environments import Environment, NotInstalledError, environment
from tests.support import PATIENCE_S, ROOT
from tests.support.servers.several_models import CHANNELS, SAMPLES

pytestmark = pytest.mark.slow

CACHE = ROOT / ".cache" / "clients"

# attrdict is what image_client reads HTTP's answers with.
TRITON = ("tritonclient[all]==2.69.0", "attrdict==2.0.1", "pillow==13.0.0")
COMMIT = "58a44caa0dce77303115302e6dbdf64626b2b093"
EXAMPLES = f"https://raw.githubusercontent.com/triton-inference-server/client/{COMMIT}"
DIGESTS = {
    "image_client.py": "d39b7e14b3af9d028ceb8fd2e99edf78cdec8312c6731d5a77c7d1ab904759c0",
    "grpc_image_client.py": "59b6bf4d91115febf19ea7114334bd23c247615553216932ecac7c77ec243415",
}
KSERVE = ("kserve==0.21.0",)
MLPERF = ("mlcommons-loadgen==6.0.17",)

SUPPORT = ROOT / "tests" / "support" / "service"


def installed(name: str, wanted: tuple[str, ...]) -> Environment:
    """Return an environment with a client. If no package registry answers, skip the test."""
    try:
        return environment(name, wanted, CACHE, print)
    except NotInstalledError as error:
        pytest.skip(f"{', '.join(wanted)} cannot be installed here: {error}")


def example(name: str) -> Path:
    """Return one of Triton's example programs, from a commit of Triton's repository."""
    path = CACHE / COMMIT / name
    if not path.is_file():
        address = f"{EXAMPLES}/src/python/examples/{name}"
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
                content = answer.read()
        except OSError as error:
            pytest.skip(f"{address} cannot be read here ({error}); or put the file at {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == DIGESTS[name]
    return path


def printed(command: list[str]) -> str:
    """Run a client, check that it succeeds, and return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("program", "protocol", "options"),
    [
        ("image_client.py", "http", []),
        ("image_client.py", "http", ["-a", "-b", "2"]),
        ("image_client.py", "grpc", ["-i", "gRPC"]),
        ("image_client.py", "grpc", ["-i", "gRPC", "--async", "--streaming", "-b", "2"]),
        ("grpc_image_client.py", "grpc", []),
    ],
)
def test_tritons_example_clients_classify(
    addresses: dict[str, str], program: str, protocol: str, options: list[str]
) -> None:
    script = example(program)
    python = installed("triton", TRITON).program("python")
    command = [python, str(script), "-m", "digits", "-c", "2", "-u", addresses[protocol], *options]
    lines = printed([*command, str(SAMPLES[3])]).splitlines()
    answers = [line for line in lines if re.fullmatch(r" +-?\d+\.\d+ \(\d\) = \d", line)]
    assert len(answers) == 2 * (2 if "-b" in options else 1)
    assert answers[0].endswith("(3) = 3")
    assert lines[-1] == "PASS"


@pytest.mark.parametrize("scaling", ["NONE", "VGG", "INCEPTION"])
def test_the_example_client_normalises_by_what_the_metadata_say(
    addresses: dict[str, str], scaling: str
) -> None:
    script = example("image_client.py")
    python = installed("triton", TRITON).program("python")
    command = [python, str(script), "-m", CHANNELS, "-s", scaling, "-c", "3"]
    text = printed([*command, "-u", addresses["http"], str(SAMPLES[0])])
    found = {label: float(score) for score, label in re.findall(r"(-?[\d.]+) \(\d\) = (\w+)", text)}
    with Image.open(SAMPLES[0]) as image:
        pixels = np.asarray(image.convert("RGB").resize((6, 4), Image.Resampling.BILINEAR), float)
    scaled = {"NONE": pixels, "VGG": pixels - (123, 117, 104), "INCEPTION": pixels / 127.5 - 1}
    expected = scaled[scaling].mean((0, 1))
    assert [found[label] for label in ("red", "green", "blue")] == pytest.approx(expected, abs=1e-3)


@pytest.fixture(scope="module")
def by_kserve(addresses: dict[str, str]) -> dict[str, Any]:
    """Return the answers that KServe's client received, by protocol."""
    python = installed("kserve", KSERVE).program("python")
    command = [python, str(SUPPORT / "kserve_calls.py"), addresses["http"], addresses["grpc"]]
    found: dict[str, Any] = json.loads(printed([*command, str(SAMPLES[3])]).splitlines()[-1])
    return found


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_kserves_client_is_answered(by_kserve: dict[str, Any], protocol: str) -> None:
    found = by_kserve[protocol]
    assert found["health"] == [True, True, True]
    amounts = [[10.0, 20.0, 30.0]] * 2
    for form in ("bytes", "numbers"):
        assert found[form] == [CHANNELS, "amount", "FP32", [2, 3], amounts]
        assert found[form] == by_kserve["http"][form]
    model, output, datatype, shape, ((*scores,),) = found["a file"]
    assert (model, output, datatype, shape) == ("digits", "logits", "FP32", [1, 10])
    assert scores.index(max(scores)) == 3
    assert found["a file"] == by_kserve["http"]["a file"]
    assert "unknown model: 'no'" in found["no such model"]


@pytest.mark.parametrize("scenario", ["SingleStream", "Server", "Offline"])
def test_mlperfs_load_generator_finds_no_error(
    addresses: dict[str, str], scenario: str, tmp_path: Path
) -> None:
    python = installed("mlperf", MLPERF).program("python")
    script = str(SUPPORT / "mlperf_calls.py")
    told = printed([python, script, addresses["http"], scenario, str(tmp_path), *map(str, SAMPLES)])
    assert told.splitlines()[-1] == "0 wrong"
    summary = (tmp_path / "mlperf_log_summary.txt").read_text()
    assert "No errors encountered during test." in summary
