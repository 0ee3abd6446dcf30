"""The commands for a GPU that is at hand for a while.

python -m benchmarks.gpu proof [--device cusim]     is every kernel right, up to the server?
python -m benchmarks.gpu plan [--seconds S]         what is not measured yet, and what fits
python -m benchmarks.gpu run [--seconds S]          measure what fits; goes on where it ended
python -m benchmarks.gpu report                     RESULTS.md from the rows
python -m benchmarks.gpu carry [--nvrtc]            what has to travel, into .gpu
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import proof
from benchmarks.rows import RESULTS, commit


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, help_text in (
        ("proof", "check the device; exit status 1 unless all is proved"),
        ("checks", "what `proof` starts: a line of JSON for each check"),
    ):
        command = commands.add_parser(name, help=help_text)
        command.add_argument("--device", choices=("cuda", "cusim"), default="cuda")
        if name == "proof":
            command.add_argument("--seconds", type=float, help="at most (120; cusim: 600)")
            command.add_argument("--out", type=Path, help="folder of the row (benchmarks/results)")
            command.add_argument("--commit", help="where the checkout is not one of git's")
    return parser.parse_args(arguments)


def main(command_line: Sequence[str] | None = None) -> int:
    """Run one; the exit status."""
    arguments = parse_arguments(command_line)
    if arguments.command == "checks":
        proof.run_checks(arguments.device)
        return 0
    on_gpu = arguments.device == "cuda"
    proved, _ = proof.prove(
        proof.child(arguments.device),
        arguments.seconds or (120 if on_gpu else 600),
        arguments.commit or commit(),
        arguments.out or (RESULTS if on_gpu else None),
    )
    return 0 if proved else 1


if __name__ == "__main__":
    sys.exit(main())
