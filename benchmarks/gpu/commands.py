"""Runs Convoy's tests and benchmarks on a GPU that is available for a limited time.

python -m benchmarks.gpu carry [--nvrtc RELEASE]    pack what the GPU machine needs, into .gpu
python -m benchmarks.gpu day [PART --out OUT]       run a day's proof, or its measurements
python -m benchmarks.gpu proof [--seconds S]        test everything, from kernels to the server
python -m benchmarks.gpu plan [--seconds S]         list missing measurements, and those that fit
python -m benchmarks.gpu run [--seconds S]          measure what fits; continues the last run
python -m benchmarks.gpu report [--readme]          write RESULTS.md from the measurements
"""

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import carried
from benchmarks.gpu.carried import NVRTC
from benchmarks.gpu.day import PARTS, SECONDS, START_S, commands, here, spend
from benchmarks.gpu.proof import GROUPS, command, prove
from benchmarks.gpu.units import LAYER, WITH_TF32, Unit, missing, packed, seconds_of, units
from benchmarks.rows import CARRIED, RESULTS, ROOT, commit, read


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def added(name: str, text: str) -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=text, description=text)
        parser.add_argument("--out", type=Path, help=f"folder of the results ({RESULTS})")
        parser.add_argument("--commit", help="the checkout's commit, if git is not available")
        return parser

    proof = added("proof", "run the tests that need a GPU; exit status 1 unless all pass")
    proof.add_argument("--groups", nargs="+", choices=GROUPS, help="groups of tests (all)")
    plan = added("plan", "list the missing measurements, and those that fit into --seconds")
    run = added("run", "measure what fits, and continue where the last run ended")
    for command_, seconds in ((proof, 540), (plan, SECONDS - START_S), (run, 540)):
        command_.add_argument(
            "--seconds", type=float, default=seconds, help="time to spend (%(default)s)"
        )
    for command_ in (plan, run):
        command_.add_argument(
            "--only",
            default="",
            help="only units whose name matches this expression, such as ResNet",
        )
    run.add_argument("--tar", type=Path, help="pack all results into this file at the end")
    worker = added("worker", "started by `run`: measure units from standard input")
    worker.add_argument("--kind", required=True)
    worker.add_argument("--side", required=True)
    report = added("report", "write RESULTS.md")
    report.add_argument("--readme", action="store_true", help="also write the README's section")
    carry = added("carry", "pack the folder for the GPU machine")
    carry.add_argument(
        "--nvrtc", metavar="RELEASE", default=NVRTC, help="the GPU machine's NVRTC (%(default)s)"
    )
    day = added("day", "run the stages of a part; without a part, list all stages")
    day.add_argument("part", nargs="?", choices=PARTS)
    day.add_argument("--seconds", type=float, help="time to spend (the sum of the stages' limits)")
    day.add_argument(
        "--patience", type=float, default=1, help="factor for all limits, above 1 if slow"
    )
    added("here", "print the versions on which results depend")
    return parser.parse_args(arguments)


def main(command_line: Sequence[str] | None = None) -> int:
    """Run the command on the command line, and return the exit status."""
    arguments = parse_arguments(command_line)
    status: int = globals()[f"_{arguments.command}"](arguments)
    return status


def _proof(arguments: argparse.Namespace) -> int:
    at, out = arguments.commit or commit(), arguments.out or RESULTS
    chosen = {name: command(GROUPS[name]) for name in arguments.groups or GROUPS}
    return 0 if prove(chosen, arguments.seconds, at, out) else 1


def _chosen(arguments: argparse.Namespace) -> list[Unit]:
    chosen = [unit for unit in units() if re.search(arguments.only, str(unit))]
    if not chosen:
        raise SystemExit(
            f"--only: no unit's name contains {arguments.only!r}; an example of a name is"
            f" {units()[-1]}"
        )
    return chosen


def _plan(arguments: argparse.Namespace) -> int:
    lines = read((arguments.out or RESULTS) / "gpu.jsonl")
    every, takes = _chosen(arguments), seconds_of(lines)
    todo = missing(every, lines, arguments.commit or commit())
    fits = packed(todo, arguments.seconds, takes)
    total = sum(takes[unit.kind, unit.side] for unit in todo)
    print(f"{len(todo)} of {len(every)} measurements are missing, about {total / 60:.0f} minutes")
    print(f"{len(fits)} of them fit into {arguments.seconds:.0f} s:")
    groups = Counter((unit.kind, unit.side, unit.n) for unit in fits)
    for (kind, side, n), count in groups.items():
        what = "connections" if kind == "http" else "N"
        print(f"  {kind} {side}, {what} = {n}: {count}, about {count * takes[kind, side]:.0f} s")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from benchmarks.gpu.run import pack, run  # noqa: PLC0415  (Linux alone has its locks)

    out, at = arguments.out or RESULTS, arguments.commit or commit()

    def worker(kind: str, side: str) -> list[str]:
        python = carried.python(tf32=side.endswith(WITH_TF32))
        command = [*python, "-m", "benchmarks.gpu", "worker", "--kind", kind]
        return [*command, "--side", side, "--out", str(out), "--commit", at]

    run(out, arguments.seconds, at, _chosen(arguments), worker)
    if arguments.tar:
        pack(out, arguments.tar)
    measured = [line for line in read(out / "gpu.jsonl") if line["commit"] == at]
    return 0 if measured else 1


def _worker(arguments: argparse.Namespace) -> int:
    from benchmarks.gpu.measure import main as measure  # noqa: PLC0415  (a GPU's, and slow)

    measure(arguments.kind, arguments.side, arguments.out, arguments.commit)
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from benchmarks.gpu.report import into_readme, results, section  # noqa: PLC0415  (plots)

    out = arguments.out or RESULTS
    lines = read(out / "gpu.jsonl")
    file = out.parent / "RESULTS.md" if out == RESULTS else out / "RESULTS.md"
    file.write_text(results(lines, out))
    print(f"{file}: {sum(line['unit'].startswith(LAYER) for line in lines)} layers among"
          f" {len(lines)} measurements")  # fmt: skip
    if arguments.readme:
        readme = ROOT / "README.md"
        readme.write_text(into_readme(readme.read_text(), section(lines)))
    return 0


def _carry(arguments: argparse.Namespace) -> int:
    from benchmarks.gpu.carry import carry  # noqa: PLC0415  (what it packs is installed here)

    files = carry(arguments.out or CARRIED, release=arguments.nvrtc)
    for name, size in files:
        print(f"{size:>12,}  {name}")
    print(f"{sum(size for _, size in files):>12,}  bytes in {arguments.out or CARRIED}")
    return 0


def _day(arguments: argparse.Namespace) -> int:
    if arguments.part is None:
        print(*commands(), sep="\n")
        return 0
    limits = sum(stage.limit for stage in PARTS[arguments.part])
    out = arguments.out or CARRIED / "out"
    spend(arguments.part, out, arguments.seconds or limits, arguments.patience)
    return 0


def _here(_: argparse.Namespace) -> int:
    for line in here():
        print(line, flush=True)
    return 0
