"""A whole day on an imitation of the machine without a GPU: all stages run, and report it."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.gpu.carry import MOST_BYTES, checkout_files
from benchmarks.gpu.day import LOG, PARTS, STAGES
from benchmarks.gpu.outcomes import ends_of
from benchmarks.gpu.proof import GROUPS, OUTCOMES
from benchmarks.rows import ROOT, read
from tests.deploy.test_packaging import UV, interpreter
from tests.support.benchmarks.imitation import Imitation, imitate
from tests.support.networks import needs_shared

pytestmark = [pytest.mark.slow, needs_shared]

_FILES, _FILE_BYTES = 8, 16 << 20
"""What comes back."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Imitation:
    return imitate(tmp_path_factory.mktemp("machine"), interpreter("3.12"), UV)


def test_what_travels_fits(machine: Imitation) -> None:
    folder = machine.folder / "convoy"
    carried = [file for file in (folder / ".gpu").rglob("*") if file.is_file()]
    tree = (ROOT / name for name in checkout_files())
    assert sum(file.stat().st_size for file in (*carried, *tree)) <= MOST_BYTES
    assert not (folder / ".git").exists()


def test_the_proof_runs_every_test_as_far_as_no_device(machine: Imitation) -> None:
    run = machine.run('python3 -m benchmarks.gpu day proof --patience 20 --out "$OUT/proof"')
    assert run.returncode == 0, run.stderr
    out = machine.folder / "out" / "proof"
    ended = {line["stage"]: line["ended"] for line in read(out / STAGES)}
    assert ended["what is here"] == "status 0"
    assert dict.fromkeys(ended, "status 1") | {"what is here": "status 0"} == ended, run.stdout
    assert list(ended) == [stage.name for stage in PARTS["proof"]]
    assert "carried kernels of NVRTC 13.0 are in" in run.stdout
    assert "ModuleNotFoundError" not in (out / LOG).read_text()
    lines = read(out / OUTCOMES)
    outcomes = Counter(
        outcome
        for name in {line["run"] for line in lines}
        for outcome in ends_of(lines, name).values()
    )
    assert set(outcomes) == {"error"}, "each began, and asked for a GPU in vain"
    assert outcomes["error"] > 2000
    assert {line["run"].split()[0] for line in lines} == {*GROUPS} - {"benchmarks"}
    assert all("cuda" in line["why"].lower() for line in lines if line["outcome"] == "error")
    comes_back(out)


def test_what_is_measured_asks_for_the_device_and_ends(machine: Imitation) -> None:
    run = machine.run('python3 -m benchmarks.gpu day speed --patience 20 --out "$OUT/speed"')
    assert run.returncode == 0, run.stderr
    out = machine.folder / "out" / "speed"
    assert [line["stage"] for line in read(out / STAGES)] == [
        stage.name for stage in PARTS["speed"]
    ]
    assert all(line["ended"].startswith("status") for line in read(out / STAGES)), run.stdout
    log = (out / LOG).read_text()
    for kind, side in (
        *(("network", "convoy untuned"), ("network", "torch graph"), ("decoding", "convoy")),
        *(("http", "convoy"), ("micro", "convoy")),
    ):
        assert f"{kind} by {side} is not measured: the measuring process crashed" in log
    assert "CUDA device 0 cannot be used" in log
    assert "ModuleNotFoundError" not in log
    assert not (out / "gpu.jsonl").exists(), "nothing was measured, and nothing says so"
    comes_back(out)


def comes_back(out: Path) -> None:
    files = [file for file in out.rglob("*") if file.is_file()]
    assert len(files) <= _FILES
    assert all(file.stat().st_size <= _FILE_BYTES for file in files)
