"""The proof's tests are collected with only the packages that the machine has or that are
carried."""

import subprocess
import sys
from importlib.metadata import packages_distributions

from benchmarks.gpu.carry import DISTRIBUTION, EXTRAS, ON_THE_MACHINE, TESTS, pins
from benchmarks.gpu.proof import GROUPS
from benchmarks.rows import ROOT

_HIDE = """
import sys
from importlib.machinery import PathFinder

hidden, real = sys.argv[1].split(","), PathFinder.find_spec

def find_spec(cls, name, path=None, target=None):
    return None if name in hidden else real(name, path, target)

PathFinder.find_spec = classmethod(find_spec)
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""
"""Starts pytest where hidden packages are absent: an import fails, and a search for one finds
nothing."""


# Those of what is carried: an installed one whose package is hidden would be an error.
_PLUGINS = ("--disable-plugin-autoload", "-p", "anyio", "-p", "hypothesispytest")


def absent() -> set[str]:
    """Return the modules that are installed here and, according to `carry`, are missing on the
    machine."""
    carried = {pin.partition("==")[0] for pin in (*pins(DISTRIBUTION, *TESTS), *EXTRAS)}
    there = ON_THE_MACHINE | carried | {DISTRIBUTION}
    return {
        module
        for module, owners in packages_distributions().items()
        if not there & {owner.lower().replace("_", "-") for owner in owners}
    }


def test_every_test_of_the_proof_is_collected_without_what_the_machine_lacks() -> None:
    hidden = absent()
    assert {"tritonclient", "grpc", "httpx", "aiohttp", "schemathesis", "matplotlib"} <= hidden
    assert not hidden & {
        "numpy",
        "onnx",
        "pydantic",
        "cupy",
        "PIL",
        "pytest",
        "hypothesis",
        "uvloop",
    }
    tests = dict.fromkeys(test for group in GROUPS.values() for test in group.tests)
    options = ("--collect-only", "-q", "-p", "no:cacheprovider", "-m", "gpu and not baseline")
    run = subprocess.run(
        [sys.executable, "-c", _HIDE, ",".join(hidden), *options, *_PLUGINS, *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    lines = run.stdout.splitlines()
    collected = [line for line in lines if "::" in line]
    assert len(collected) > 2000
    assert any("test_gpu_server" in line for line in collected)
