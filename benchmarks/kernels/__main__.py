"""Convolutions one by one: Convoy's choice beside the best of cuDNN and PyTorch, in one run.

    python -m benchmarks.kernels [--suite NAME] [--n N] [--budget-s S] [--out FOLDER]

For every layer of the suites (benchmarks/kernels/suites.py) and N = 1, 8, 2, 4: strict float32,
results checked before anything is timed, graphs of 20 copies, the median of 200 replays, with the
operands in the second-level cache and with none of them there. A row a side goes to
OUT/kernels.jsonl when its problem is done; problems whose rows are there, of the same device and
commit, are not measured again. Ends with tables, plots, and what of the project's goals is met.

    --report     show the rows that are there
    --accuracy   errors, not times (benchmarks/kernels/accuracy.py); --device cusim needs no GPU
    --costs      products, workspace and bytes of each way to compute (benchmarks/kernels/costs.py)
    --estimate    what the cost model expects, no measurement (benchmarks/kernels/estimate.py)
    --profile    what machine code says of the kernels (benchmarks/kernels/profile.py); needs NVRTC
                 and nvdisasm, but no GPU
"""

import argparse
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks.kernels import accuracy, costs, estimate, profile
from benchmarks.kernels.contest import Effort, Outcome
from benchmarks.kernels.plots import NoMatplotlibError, plot_speedups
from benchmarks.kernels.show import show
from benchmarks.kernels.sides import BASELINES, ConvoySide, Side, baselines
from benchmarks.kernels.suites import BATCHES, SUITES
from benchmarks.rows import RESULTS, Row, append, commit, now, read, versions
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import Device, DeviceError, FaultError
from kernels.problems.conv import ConvProblem
from kernels.tuning.autotune import Search
from kernels.tuning.store import TuningStore

PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "torch", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend")

ORDER = (1, 8, 2, 4)
"""N, those that goals are set for first."""


def problems(suites: Iterable[str], batches: Iterable[int]) -> list[ConvProblem]:
    """Every problem of the suites once, by N in the order given."""
    names = list(suites)
    every = (layer.problem.with_batch(n) for n in batches for s in names for layer in SUITES[s])
    return list(dict.fromkeys(every))


def where(device: Device, at: str) -> dict[str, object]:
    """Return what a number depends on: the code, the device, the versions."""
    return {
        "kind": "measurement",
        "commit": at,
        "device": device.name,
        "driver": nvidia_driver() or device.driver,
        "compiler": device.compiler,
        "peak_flops": device.peak_flops,
        **versions(*PACKAGES),
    }


def nvidia_driver() -> str | None:
    """Its version, where nvidia-smi is there to say it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    return next(iter(answer.stdout.split()), None)


def rows_of(problem: ConvProblem, side: str, outcome: Outcome, effort: Effort) -> list[Row]:
    """A row for each state of the cache; none where nothing could run."""
    return [
        {
            "problem": str(problem),
            "n": problem.n,
            "side": side,
            "cache": cache.value,
            "choice": winner.name,
            "workspace_bytes": winner.workspace_bytes,
            "p20_us": round(winner.timing.p20_us, 3),
            "p50_us": round(winner.timing.p50_us, 3),
            "p80_us": round(winner.timing.p80_us, 3),
            "copies": effort.copies,
            "replays": effort.replays,
            "tried": outcome.tried,
            "refused": len(outcome.refused),
        }
        for cache, winner in outcome.winners.items()
    ]


def missing(rows: Iterable[Row], problem: ConvProblem, sides: Sequence[Side]) -> list[Side]:
    """The sides without rows of the problem."""
    there = {row["side"] for row in rows if row["problem"] == str(problem)}
    return [side for side in sides if side.name not in there]


def measure(
    todo: Sequence[ConvProblem],
    sides: Sequence[Side],
    file: Path,
    place: Row,
    effort: Effort,
    budget_s: float,
    console: Console,
) -> None:
    """Measure what has no rows yet, a problem at a time, until the budget is spent."""
    deadline = time.monotonic() + budget_s
    known = of_place(read(file), place)
    with Progress(console=console) as progress:
        task = progress.add_task("problems", total=len(todo))
        for problem in todo:
            for side in missing(known, problem, sides):
                if time.monotonic() > deadline:
                    console.print("the budget is spent; the same command goes on from here")
                    return
                outcome = side.measure(problem)
                append(
                    file,
                    (
                        {"date": now(), **place, **row}
                        for row in rows_of(problem, side.name, outcome, effort)
                    ),
                )
                console.print(line(problem, side.name, outcome))
            progress.advance(task)


def line(problem: ConvProblem, side: str, outcome: Outcome) -> str:
    """Describe what a side did with a problem, or why it did nothing."""
    if not outcome.winners:
        reasons = "; ".join(f"{name}: {why}" for name, why in outcome.refused.items())
        return f"{problem}  {side}: nothing runs ({reasons})"
    times = ", ".join(
        f"{cache.value} {winner.timing.p50_us:.2f} µs ({winner.name})"
        for cache, winner in outcome.winners.items()
    )
    return f"{problem}  {side}: {times}"


def of_place(rows: Iterable[Row], place: Row) -> list[Row]:
    """Measurements on the same device, of the same commit."""
    same = ("kind", "device", "commit")
    return [row for row in rows if all(row[key] == place[key] for key in same)]


def report(rows: Sequence[Row], folder: Path, console: Console) -> None:
    """Tables, goals, plots."""
    show(rows, console)
    try:
        for file in plot_speedups(rows, folder):
            console.print(f"plotted {file}")
    except NoMatplotlibError as error:
        console.print(str(error))


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description="Measure convolutions beside cuDNN and PyTorch, on a GPU.",
    )
    parser.add_argument(
        "--suite", action="append", choices=tuple(SUITES), help="again for more (all)"
    )
    parser.add_argument("--n", action="append", type=int, choices=BATCHES, help="again for more")
    parser.add_argument(
        "--baseline", action="append", choices=tuple(BASELINES), help="again for more (all)"
    )
    parser.add_argument("--heuristic", action="store_true", help="do not tune: take its choices")
    parser.add_argument(
        "--top",
        type=int,
        default=Search().top,
        help="candidates to tune among, the best by estimate; 0 for all (%(default)s)",
    )
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="seconds to spend")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder (%(default)s)")
    parser.add_argument("--commit", help="where the checkout is not one of git's")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--report", action="store_true", help="only show what is there")
    what.add_argument("--accuracy", action="store_true", help="errors on the VGG-E layers")
    what.add_argument("--costs", action="store_true", help="what is multiplied, moved and stored")
    what.add_argument("--estimate", action="store_true", help="what the cost model expects")
    what.add_argument("--profile", action="store_true", help="what machine code says of kernels")
    parser.add_argument(
        "--device", choices=tuple(accuracy.DEVICES), default="cuda", help="for --accuracy"
    )
    parser.add_argument("--docs", action="store_true", help="with --costs: into docs/kernels.md")
    parser.add_argument("--whole", action="store_true", help="no smaller layers on the simulator")
    return parser.parse_args(arguments)


def main(command_line: Sequence[str] | None = None) -> None:
    """Measure, show, and write down."""
    arguments = parse_arguments(command_line)
    console = Console(highlight=False, markup=False)
    file = arguments.out / "kernels.jsonl"
    at = arguments.commit or commit()
    if arguments.costs:
        suites, batches = arguments.suite or SUITES, arguments.n or ORDER
        costs.run(suites, batches, console, docs=arguments.docs)
        return
    if arguments.estimate:
        estimate.run(arguments.out, at, console)
        return
    if arguments.profile:
        try:
            profile.run(problems(arguments.suite or SUITES, arguments.n or ORDER), console)
        except DeviceError as error:
            raise SystemExit(str(error)) from error
        return
    if arguments.accuracy:
        try:
            whole = arguments.whole or arguments.device == "cuda"
            accuracy.run(arguments.device, arguments.out, at, console, whole=whole)
        except DeviceError as error:
            raise SystemExit(f"{error}; try --device cusim") from error
        return
    if arguments.report:
        rows = read(file)
        if rows:
            report(of_place(rows, rows[-1]), arguments.out, console)
        else:
            console.print(f"no rows in {file}")
        return
    try:
        device = CudaDevice()
    except DeviceError as error:
        raise SystemExit(f"kernels are measured on a GPU: {error}") from error
    effort = Effort()
    place = where(device, at)
    store = None if arguments.heuristic else TuningStore(arguments.out / "tuning.json")
    sides: list[Side] = [ConvoySide(device, effort, store, Search(top=arguments.top or None))]
    sides += baselines(arguments.baseline or BASELINES, device, effort, console.print)
    todo = problems(arguments.suite or SUITES, arguments.n or ORDER)
    try:
        measure(todo, sides, file, place, effort, arguments.budget_s, console)
    except FaultError as error:
        report(of_place(read(file), place), arguments.out, console)
        raise SystemExit(f"the device is lost: {error}") from error
    report(of_place(read(file), place), arguments.out, console)
    for side in sides:
        side.close()


if __name__ == "__main__":
    main()
