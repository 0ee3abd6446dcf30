"""Reads the clock rates of a GPU. Measurements at different clock rates cannot be compared."""

import shutil
import subprocess

from benchmarks.rows import Row

_CLOCKS = {
    "clocks.sm": "sm_mhz",
    "clocks.mem": "memory_mhz",
    "temperature.gpu": "celsius",
    "power.draw": "watts",
}


def clocks() -> Row:
    """Return the GPU's current clock rates from nvidia-smi, by name. Return an empty row if
    nvidia-smi is missing or cannot read them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = [program, f"--query-gpu={','.join(_CLOCKS)}", "--format=csv,noheader,nounits", "--id=0"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=10).stdout
    return clocks_of(answer)


def clocks_of(answer: str) -> Row:
    """Return the clock rates in a line of nvidia-smi's output, by name."""
    readings = zip(_CLOCKS.values(), answer.partition("\n")[0].split(","), strict=False)
    return {
        name: float(text) for name, text in readings if text.strip().replace(".", "", 1).isdigit()
    }
