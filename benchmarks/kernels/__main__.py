"""Counts the costs of several ways to compute a convolution, and measures errors, for
docs/kernels.md.

    python -m benchmarks.kernels --costs      products, workspace and bytes (costs.py)
    python -m benchmarks.kernels --accuracy   errors (accuracy.py); --device cusim needs no GPU

Times are measured by `python -m benchmarks.gpu run`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.kernels import accuracy, costs
from benchmarks.kernels.suites import BATCHES, SUITES
from benchmarks.rows import RESULTS, commit
from kernels.device.device import DeviceError


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels",
        description="Count costs of convolutions, or measure their errors.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--accuracy", action="store_true", help="measure errors on the VGG-E layers")
    what.add_argument("--costs", action="store_true", help="count products, bytes and workspace")
    parser.add_argument(
        "--device", choices=tuple(accuracy.DEVICES), default="cuda", help="for --accuracy"
    )
    parser.add_argument("--whole", action="store_true", help="compute all pixels on the simulator")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of results (%(default)s)")
    parser.add_argument("--docs", action="store_true", help="with --costs: write docs/kernels.md")
    return parser.parse_args(arguments)


def main(command_line: Sequence[str] | None = None) -> None:
    """Print the costs of the algorithms, or measure and print their errors."""
    arguments = parse_arguments(command_line)
    console = Console(highlight=False, markup=False)
    if arguments.costs:
        costs.run(SUITES, BATCHES, console, docs=arguments.docs)
        return
    whole = arguments.whole or arguments.device == "cuda"
    try:
        accuracy.run(arguments.device, arguments.out, commit(), console, whole=whole)
    except DeviceError as error:
        raise SystemExit(f"{error}; try --device cusim") from error


if __name__ == "__main__":
    main()
