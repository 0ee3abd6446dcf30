"""Prints how far Convoy's batching policy is from the best results that any policy could reach.
docs/batching.md quotes the numbers.

    python -m benchmarks.simulation [--requests N]

The policy is the code of the server (`service/batching/policy.py`). The engine, the arrivals and
the clock are simulated. So the numbers are the same in every run, and do not depend on the machine.
"""

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.simulation import gaps


def table(found: Sequence[gaps.Gap]) -> Table:
    """Return a table with a row for each batch-time profile, workload and measure, such as the mean
    latency. A row has the distance between the policy and the bound for each load."""
    shown = Table(box=None, title="excess over the bound, %", title_justify="left")
    for heading in ("L(n)", "workload", "measure", "mean", "worst", "at", "all"):
        shown.add_column(heading, justify="left" if heading in {"L(n)", "workload"} else "right")
    groups: dict[tuple[str, str, str], list[gaps.Gap]] = {}
    for gap in found:
        groups.setdefault((gap.profile, gap.workload, gap.measure), []).append(gap)
    for key, group in groups.items():
        worst = max(group, key=lambda gap: gap.ratio)
        every = " ".join(f"{gap.load:g}:{100 * gap.excess:.1f}" for gap in group)
        mean = sum(gap.excess for gap in group) / len(group)
        shown.add_row(
            *key, f"{100 * mean:.1f}", f"{100 * worst.excess:.1f}", f"{worst.load:g}", every
        )
    return shown


def main(command_line: Sequence[str] | None = None) -> None:
    """Simulate, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulation",
        description="Print how far the batching policy is from bounds that no policy exceeds.",
    )
    parser.add_argument(
        "--requests", type=int, default=6000, help="simulated requests per point (%(default)s)"
    )
    requests = parser.parse_args(command_line).requests
    Console(highlight=False, soft_wrap=True).print(table(list(gaps.every(requests))))


if __name__ == "__main__":
    main()
