"""Runs tests and benchmarks on a GPU that is available for only a quarter of an hour. There are two
parts, which consist of stages. Each stage runs in a separate process with a time limit.

    python3 -m benchmarks.gpu day proof --out "$OUT"      # is every kernel right?
    python3 -m benchmarks.gpu day speed --out "$OUT"      # how fast is everything?

The output of all stages is written to day.log. Whenever a stage ends, a line in day.jsonl says when
it began and how it ended. When the time of a part is over, the remaining stages of the part are not
run. No stage changes the GPU's clocks, power limits or partitions.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from benchmarks.gpu import carried
from benchmarks.gpu.carried import ARCHITECTURE
from benchmarks.gpu.proof import limited
from benchmarks.rows import append, now, nvidia_driver
from kernels.device.compile import DEFAULT_CACHE, cached_file, compiler
from kernels.device.device import DeviceError
from kernels.layout.strided import StridedTensor
from kernels.operations.elementwise import fill_launch

SECONDS, START_S = 900, 130
"""The seconds of a whole day, and the seconds before its first command runs, in which the machine
starts and the files are copied."""

LOG, STAGES = "day.log", "day.jsonl"

_TOLD = ("cupy", "numpy", "nvidia-cuda-nvrtc", "nvidia-cudnn", "onnx", "pillow", "pytest", "torch")
_TO_END_S = 2
"""A stage ends by itself this many seconds before its limit, with a row about its results."""

_SHOWN = 4
"""The number of a stage's last lines that are shown with its ending."""

_VECTOR = StridedTensor.contiguous((4,))
_MOST_LOG_BYTES = 12 << 20
"""The most bytes of LOG. Files of more than 16 MiB are not copied back."""


@dataclass(frozen=True)
class Stage:
    """Describes one stage: the arguments of a Python command, and the command's expected time and
    time limit, both in seconds.

    In `arguments`, {out} stands for the results' folder, and {seconds} for slightly less than the
    limit. If `program` is given, this command, such as a profiler, starts Python. The stage is
    skipped if this program is not installed.
    """

    name: str
    arguments: tuple[str, ...]
    expected: int
    limit: int
    program: tuple[str, ...] = ()


def _proof(group: str, expected: int, limit: int) -> Stage:
    arguments = ("-m", "benchmarks.gpu", "proof", "--groups", group, "--out", "{out}")
    return Stage(group, (*arguments, "--seconds", "{seconds}"), expected, limit)


def _run(name: str, only: str, expected: int, limit: int) -> Stage:
    arguments = ("-m", "benchmarks.gpu", "run", "--only", only, "--out", "{out}")
    return Stage(name, (*arguments, "--seconds", "{seconds}"), expected, limit)


def _sanitized(tool: str, cases: str, expected: int, limit: int) -> Stage:
    sanitizer = ("compute-sanitizer", "--tool", tool, "--target-processes", "all")
    tests = ("-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-m", "gpu", "-k", cases)
    return Stage(
        tool,
        (*tests, "tests/kernels/whole/test_kernels.py"),
        expected,
        limit,
        (*sanitizer, "--error-exitcode", "9"),
    )


_CONVOY = ("-c", "from service.cli import main; main()")
_SAMPLE = "models/digits/samples/3_ink_on_paper.jpg"
_PROFILED = (
    *("-m", "benchmarks.gpu", "run", "--only", "network ResNet-50 fp16 N1 convoy untuned$"),
    *("--seconds", "{seconds}", "--out", ".gpu/profiled"),
)
_NCU = (
    *("ncu", "--clock-control", "none", "--target-processes", "all", "--set", "basic"),
    *("--section", "MemoryWorkloadAnalysis", "--launch-count", "12", "--kill", "yes"),
    *("-k", "regex:conv_(direct|winograd|tensor)", "-f", "-o", "{out}/kernels"),
)

PARTS: Mapping[str, Sequence[Stage]] = {
    "proof": (
        Stage("what is here", ("-m", "benchmarks.gpu", "here"), 10, 20),
        Stage(
            "smoke",
            (*_CONVOY, "classify", "digits", _SAMPLE, "--device", "cuda"),
            10,
            30,
        ),
        _proof("kernels", 70, 100),
        _proof("windows", 10, 35),
        _proof("risky", 40, 70),
        _proof("replays", 30, 45),
        _proof("engines", 45, 57),
        _proof("server", 15, 30),
        _sanitized("memcheck", "conv_tensor_tma and (1x7 or 7x1)", 25, 34),
        _sanitized("racecheck", "conv_winograd and MobileNetV3", 30, 36),
    ),
    "speed": (
        _run("networks", "network (SqueezeNet|ResNet-50|ViT-S/16).* convoy untuned", 70, 95),
        _run("torch", "network (SqueezeNet|ResNet-50|ViT-S/16).* N[18] torch graph", 58, 78),
        _run("decoding", "decoding|http JPEG decoded.* N[18] ", 30, 48),
        _run("http", "http JPEG N[18] ", 25, 35),
        _run("micro", "micro", 20, 30),
        # These times are not the network's, because the profiler runs each kernel several times.
        Stage("ncu", _PROFILED, 15, 27, _NCU),
    ),
}


def spend(part: str, out: Path, seconds: float, patience: float = 1) -> None:
    """Run the stages of a part in order, for at most `seconds`.

    All limits are multiplied by `patience`, which is above 1 on machines that are slower than the
    GPU machine.
    """
    out.mkdir(parents=True, exist_ok=True)
    deadline, python = time.monotonic() + patience * seconds, carried.python()
    for stage in PARTS[part]:
        began = time.monotonic()
        print(
            f"{now()} {stage.name}: about {stage.expected} s, at most {stage.limit} s", flush=True
        )
        ended, told = _run_stage(stage, python, out, min(patience * stage.limit, deadline - began))
        took = round(time.monotonic() - began, 1)
        append(
            out / STAGES, [{"stage": stage.name, "date": now(), "ended": ended, "seconds": took}]
        )
        print(f"{now()} {stage.name}: {ended} after {took} s", *told, sep="\n    ", flush=True)


def _run_stage(
    stage: Stage, python: Sequence[str], out: Path, seconds: float
) -> tuple[str, Sequence[str]]:
    """Run a stage. Return how the stage ended, and the last lines that it printed."""
    if stage.program and shutil.which(stage.program[0]) is None:
        return f"left out: this machine has no {stage.program[0]}", ()
    if seconds <= 0:
        return "left out: the time was over", ()
    given = {"out": out, "seconds": max(1, int(seconds - _TO_END_S))}
    whole = [part.format(**given) for part in (*stage.program, *python, *stage.arguments)]
    file = out / LOG
    with file.open("ab") as log:
        log.write(f"\n===== {now()} {stage.name}: {' '.join(whole)}\n".encode())
        log.flush()
        begin = log.tell()
        status = limited(whole, seconds, stdout=log, stderr=subprocess.STDOUT)
    content = file.read_bytes()
    if len(content) > _MOST_LOG_BYTES:
        half = _MOST_LOG_BYTES // 2
        file.write_bytes(content[:half] + b"\n[...]\n" + content[-half:])
    told = content[begin:].decode(errors="replace").splitlines()[-_SHOWN:]
    return ("the limit was reached" if status is None else f"status {status}"), told


def here() -> Iterator[str]:
    """Yield lines with the versions on which results depend. The last line says whether the cache
    has kernels compiled by this machine's compiler."""
    yield f"driver {nvidia_driver()}"
    for installed in sorted(distributions(), key=lambda each: each.name.lower()):
        if installed.name.lower().startswith(_TOLD):
            yield f"{installed.name} {installed.version}"
    try:
        found = cached_file(fill_launch(_VECTOR, 1.0).instantiation, ARCHITECTURE).is_file()
    except DeviceError as error:
        yield f"no kernel can be compiled: {error}"
    else:
        told = "are in" if found else "ARE MISSING from"
        yield f"carried kernels of {compiler()} {told} {DEFAULT_CACHE}"


def commands() -> Iterator[str]:
    """Yield a line with the command of each part, and then a line for each of its stages, which
    says when the stage ends at the latest."""
    total = START_S
    for part, stages in PARTS.items():
        limit = sum(stage.limit for stage in stages)
        yield f'python3 -m benchmarks.gpu day {part} --out "$OUT"    # at most {limit} s'
        for stage in stages:
            total += stage.limit
            yield f"    {stage.name:15} about {stage.expected:3} s, ends by {total:3} s"
