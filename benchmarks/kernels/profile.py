"""What machine code says of the kernels that the suites' layers run: no GPU, no measurement.

Of each layer the configuration that the heuristic chooses; every kernel once. Counted anew where
NVRTC and nvdisasm are installed; `kernels/tuning/profile.tsv` has what was committed.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kernels.convolution.algorithms import choices
from kernels.device.compile import DEFAULT_CACHE, compile_kernel
from kernels.device.device import Instantiation
from kernels.device.gpus import H200
from kernels.problems.conv import ConvProblem
from kernels.tuning.heuristic import choose
from kernels.tuning.profile_table import ARCHITECTURE, profile_of
from kernels.tuning.search import measured_launches
from kernels.tuning.static_profile import StaticProfile, static_profile


def profiles(
    problems: Sequence[ConvProblem], cache: Path = DEFAULT_CACHE
) -> dict[Instantiation, tuple[int, StaticProfile]]:
    """By kernel: how many of the problems it serves, and its profile.

    Raises CompileError, CompilerNotFoundError, DisassemblerNotFoundError.
    """
    found: dict[Instantiation, tuple[int, StaticProfile]] = {}
    for problem in problems:
        choice = choose(problem, choices(problem), H200)
        works = choice.algorithm.work(problem, choice.config)
        for launch, work in zip(measured_launches(problem, choice), works, strict=True):
            kernel = launch.instantiation
            if kernel in found:
                served, profile = found[kernel]
            else:
                cubin = compile_kernel(kernel, ARCHITECTURE, cache)
                threads = prod(launch.block)
                made = static_profile(cubin, ARCHITECTURE, threads, launch.shared_bytes, work.trips)
                simulated = profile_of(kernel).load_wavefronts
                served, profile = 0, replace(made, load_wavefronts=simulated)
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
    "issue ceiling",
    "LDS ceiling",
    "start",
    "to the loop",
    "finish",
    "4 outputs",
    "code, KB",
)


def cells(profile: StaticProfile) -> tuple[str, ...]:
    """A row's, after the kernel and its layers."""

    def percent(share: float | None) -> str:
        return "" if share is None else f"{share:.0%}"

    ends = (profile.start, profile.fill, profile.finish, profile.vector)
    return (
        str(profile.registers),
        str(profile.blocks),
        str(sum(profile.loop.values())) if profile.loop else "",
        percent(profile.share),
        percent(profile.ceiling),
        percent(profile.shared_ceiling),
        *(str(each.instructions) for each in ends),
        f"{profile.code_bytes / 1024:.0f}",
    )
