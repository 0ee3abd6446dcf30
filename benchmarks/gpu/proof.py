"""Whether this GPU computes what it should, in three minutes, from the first kernel to the server.

    parent ─ starts, times, ends ─> child: the checks, one after another, a line of JSON each
       └─ a line for each, PROVED or what is not, a row in gpu_proof.jsonl, the exit status

The child may hang or die: what it has not shown by then is not proved.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import carried
from benchmarks.rows import ROOT, Row, append, now

NAMES = (
    "device",
    "kernels load",
    "kernels are right",
    "digits",
    "photographs",
    "graphs",
    "edges",
    "late stores",
    "replays",
    "memory",
    "server",
)
"""Of the checks (benchmarks/gpu/checks.py), which the parent does not import."""


def child(device: str) -> list[str]:
    """The command that runs the checks."""
    return [*carried.python(), "-m", "benchmarks.gpu", "checks", "--device", device]


def run_checks(device: str) -> None:
    """The child: a line of JSON for each check, the first with the device's row."""
    from benchmarks.gpu import checks  # noqa: PLC0415  (needs all that the parent must not)
    from benchmarks.kernels.__main__ import where  # noqa: PLC0415

    subject = checks.simulated() if device == "cusim" else checks.on_gpu()
    _say({"place": where(subject.device, "")})
    for name, check in checks.CHECKS.items():
        began = time.monotonic()
        try:
            ok, text = True, check(subject)
        except Exception as error:  # noqa: BLE001  whatever it is, the check has not passed
            ok, text = False, f"{type(error).__name__}: {error}"
        _say({"check": name, "ok": ok, "text": text, "seconds": round(time.monotonic() - began, 2)})


def prove(
    command: Sequence[str], seconds: float, commit: str, out: Path | None
) -> tuple[bool, list[Row]]:
    """Run the child, print what it shows, and whether all is proved; a row goes to `out`."""
    began = time.monotonic()
    device: Row = {}
    shown: list[Row] = []
    ending = "the checks ended"
    for said in _lines(command, seconds):
        if "place" in said:
            device = said["place"]
        elif "ended" in said:
            ending = said["ended"]
        else:
            shown.append(said)
            verdict = "ok    " if said["ok"] else "FAILED"
            print(f"{time.monotonic() - began:6.1f} s  {verdict} {said['check']}: {said['text']}")
    missing = [name for name in NAMES if name not in {each["check"] for each in shown}]
    for name in missing:
        print(f"{time.monotonic() - began:6.1f} s  FAILED {name}: {ending} before it")
    wrong = [each["check"] for each in shown if not each["ok"]] + missing
    print(f"NOT PROVED: {', '.join(wrong)}" if wrong else "PROVED", flush=True)
    if out is not None:
        row = {
            **device,
            "kind": "proof",
            "date": now(),
            "commit": commit,
            "proved": not wrong,
            "not_proved": wrong,
            "seconds": round(time.monotonic() - began, 1),
            "checks": shown,
        }
        append(out / "gpu_proof.jsonl", [row])
    return not wrong, shown


def _lines(command: Sequence[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield what the child says, and at last how it ended; it is ended after so many seconds."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
            else:
                print(line, end="")
        status = process.wait()
        if late.is_set():
            yield {"ended": f"{seconds:g} s were over"}
        elif status:
            yield {"ended": f"the process died with status {status}"}
    finally:
        timer.cancel()
        process.kill()
        process.wait()


def _say(line: Row) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
