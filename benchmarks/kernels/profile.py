"""What machine code says of the kernels that the suites' layers run: no GPU, no measurement.

Of each layer the configuration that the heuristic chooses; every kernel once.
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kernels.convolution.algorithms import choices
from kernels.device.compile import DEFAULT_CACHE, compile_kernel
from kernels.device.device import Instantiation
from kernels.problems.conv import ConvProblem
from kernels.tuning.heuristic import H200, choose
from kernels.tuning.search import measured_launches
from kernels.tuning.static_profile import StaticProfile, static_profile

ARCHITECTURE = "90a"
"""The H200's, for which the heuristic chooses."""


def profiles(
    problems: Sequence[ConvProblem], cache: Path = DEFAULT_CACHE
) -> dict[Instantiation, tuple[int, StaticProfile]]:
    """By kernel: how many of the problems it serves, and its profile.

    Raises CompileError, CompilerNotFoundError, DisassemblerNotFoundError.
    """
    found: dict[Instantiation, tuple[int, StaticProfile]] = {}
    for problem in problems:
        for launch in measured_launches(problem, choose(problem, choices(problem), H200)):
            kernel = launch.instantiation
            if kernel in found:
                served, profile = found[kernel]
            else:
                cubin = compile_kernel(kernel, ARCHITECTURE, cache)
                threads = prod(launch.block)
                served, profile = (
                    0,
                    static_profile(kernel, ARCHITECTURE, cubin, threads, launch.shared_bytes),
                )
            found[kernel] = served + 1, profile
    return found


def run(problems: Sequence[ConvProblem], console: Console, cache: Path = DEFAULT_CACHE) -> None:
    """Print a row for each kernel."""
    table = Table(
        title=f"Counted in machine code for sm_{ARCHITECTURE}; nothing here was measured",
        title_justify="left",
    )
    table.add_column("kernel", overflow="fold")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    by_use = sorted(profiles(problems, cache).items(), key=lambda item: -item[1][0])
    for kernel, (served, profile) in by_use:
        table.add_row(kernel.expression, str(served), *cells(profile))
    console.print(table)


HEADINGS = (
    "layers",
    "registers",
    "blocks per SM",
    "instructions a turn",
    "multiply",
    "ceiling",
    "before the first copy",
    "waits",
    "code, KB",
)


def cells(profile: StaticProfile) -> tuple[str, ...]:
    """A row's, after the kernel and its layers."""
    share, ceiling = profile.share, profile.ceiling
    return (
        str(profile.registers),
        str(profile.blocks),
        str(sum(profile.loop.values())) if profile.loop else "",
        "" if share is None else f"{share:.0%}",
        "" if ceiling is None else f"{ceiling:.0%}",
        str(profile.before_copy),
        str(profile.waits),
        f"{profile.code_bytes / 1024:.0f}",
    )
