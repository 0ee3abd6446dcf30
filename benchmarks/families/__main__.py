"""Checks which families of classifiers, such as ResNet or YOLO, run on Convoy's kernels. Also
measures their errors, and counts their kernel launches.

    python -m benchmarks.families export [FOLDER] [--family NAME]... [--exporter NAME]
    python -m benchmarks.families check [FOLDER] [--family NAME]... [--no-plans] [--simulate]
    python -m benchmarks.families table

`export` exports 65 small networks from families of timm and Ultralytics. It uses both exporters of
PyTorch, for batch size 1 and for any batch size. It needs torch, timm and onnxscript, and
ultralytics for YOLO. The models stay in FOLDER, outside the repository. `check` checks these files
with Convoy, and adds rows to benchmarks/results/families.jsonl. Planning the launches and
estimating their times takes long; --no-plans omits both. A file's row then has only the error of
its scores, and says whether Convoy's kernels can run the file. If they cannot, the row names the
unsupported node. --simulate runs the newest export of each named family on Convoy's kernels,
simulated on the CPU. Each export takes minutes.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.families.check import check, simulate
from benchmarks.families.export import EXPORTERS, FAMILIES, export
from benchmarks.families.table import table
from benchmarks.rows import RESULTS, append, read

FOLDER = Path(".cache") / "families"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the subcommand: export, check or table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__)
    parser.add_argument("what", choices=("export", "check", "table"))
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--exporter", action="append", choices=EXPORTERS)
    parser.add_argument("--no-plans", action="store_true")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    console, families = Console(width=160), options.family or FAMILIES
    if options.what == "export":
        try:
            for done in export(options.folder, families, options.exporter or tuple(EXPORTERS)):
                console.print(done)
        except ImportError as missing:
            needed = "pip install torch timm onnxscript ultralytics"
            parser.exit(1, f"skipped: {missing}; {needed}\n")
        return
    if options.what == "table":
        rows = read(options.out / "families.jsonl")
        (options.out / "families.md").write_text(table(rows), encoding="utf-8")
        return
    there = [name for name in families if (options.folder / f"{name}.npz").exists()]
    if absent := [name for name in families if name not in there]:
        console.print("not exported, and not checked:", ", ".join(absent))
    if options.simulate:
        found = simulate(options.folder, there)
    else:
        found = check(options.folder, there, planned=not options.no_plans)
    for row in found:
        append(options.out / "families.jsonl", [row])
        console.print(*(f"{key}={value}" for key, value in row.items() if key != "reason"))


if __name__ == "__main__":
    main()
