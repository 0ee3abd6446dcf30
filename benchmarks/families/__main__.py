"""Checks families of classifiers: whether they load, their launches and errors.

    python -m benchmarks.families export [FOLDER] [--family NAME]...    with torch and timm
    python -m benchmarks.families check [FOLDER] [--family NAME]... [--simulate]
    python -m benchmarks.families table

Exports one small member of each of 51 families of timm, by both exporters of PyTorch, for batch 1
and for any, and checks what Convoy makes of them. Rows go to benchmarks/results/families.jsonl; the
models stay in FOLDER, outside the repository. --simulate also runs the newest export of each family
named on Convoy's kernels, on the CPU: minutes each.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.families.check import check, simulate
from benchmarks.families.export import FAMILIES, export
from benchmarks.families.table import table
from benchmarks.rows import RESULTS, append, read

FOLDER = Path(".cache") / "families"


def main(arguments: Sequence[str] | None = None) -> None:
    """Export, check or print the table, as the command line asks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.families", description=__doc__)
    parser.add_argument("what", choices=("export", "check", "table"))
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    console = Console(width=160)
    if options.what == "export":
        try:
            for done in export(options.folder, options.family or FAMILIES):
                console.print(done)
        except ImportError as missing:
            parser.exit(1, f"skipped: {missing}; pip install torch timm onnxscript\n")
        return
    if options.what == "table":
        rows = read(options.out / "families.jsonl")
        (options.out / "families.md").write_text(table(rows), encoding="utf-8")
        return
    run = simulate if options.simulate else check
    for row in run(options.folder, options.family or FAMILIES):
        append(options.out / "families.jsonl", [row])
        console.print(*(f"{key}={value}" for key, value in row.items() if key != "reason"))


if __name__ == "__main__":
    main()
