"""Reads a GPU's clocks, without which a measurement says little."""

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
    """Return what nvidia-smi reads now, or nothing if it is missing or cannot read clocks."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = [program, f"--query-gpu={','.join(_CLOCKS)}", "--format=csv,noheader,nounits", "--id=0"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=10).stdout
    return clocks_of(answer)


def clocks_of(answer: str) -> Row:
    """Return the numbers in a line that nvidia-smi printed, by their names."""
    readings = zip(_CLOCKS.values(), answer.partition("\n")[0].split(","), strict=False)
    return {
        name: float(text) for name, text in readings if text.strip().replace(".", "", 1).isdigit()
    }
