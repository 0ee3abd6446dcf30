"""NVIDIA's perf_analyzer, unchanged and pinned, with a real server, if it is installed.

Its wheel needs glibc 2.38. So run `pip install perf-analyzer==2.60.0` on Ubuntu 24.04 or Debian 13.
With an older glibc, pip installs a placeholder with the same name, which measures nothing.
"""

import csv
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.servers.several_models import CHANNELS


def is_installed() -> bool:
    """Return whether a real perf_analyzer is installed. It has no option that prints its
    version."""
    program = shutil.which("perf_analyzer")
    if program is None:
        return False
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return "Perf Analyzer Version" in told.stdout + told.stderr


pytestmark = pytest.mark.skipif(not is_installed(), reason="no perf_analyzer is installed")


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("digits", ["--concurrency-range", "2"]),
        (CHANNELS, ["-b", "4", "--async", "--concurrency-range", "2"]),
        ("digits", ["--input-tensor-format", "json", "--output-tensor-format", "json"]),
        ("digits", ["--request-rate-range", "50", "--request-distribution", "poisson"]),
    ],
    ids=["one at a time", "batches", "JSON", "Poisson"],
)
def test_perf_analyzer_measures_and_reads_the_servers_statistics(
    address: str, tmp_path: Path, model: str, options: list[str]
) -> None:
    report = tmp_path / "report.csv"
    command = ["perf_analyzer", "-m", model, "-u", address, "-f", str(report)]
    # Whether it is steady on a busy machine is not asked.
    measuring = ["-p", "500", "-s", "999", "--collect-metrics"]
    metrics = ["--metrics-url", f"{address}/metrics"]
    done = subprocess.run(
        [*command, *measuring, *metrics, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with report.open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["Inferences/Second"]) > 0
    for part in ("Server Queue", "Server Compute Input", "Server Compute Infer"):
        assert int(row[part]) >= 0
    assert int(row["Server Compute Infer"]) > 0
