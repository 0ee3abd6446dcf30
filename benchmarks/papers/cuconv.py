"""Lists the results of Jordà et al. 2021, "cuConv: A CUDA Implementation of Convolution", and
Convoy's result for each."""

from benchmarks.kernels.baselines_cudnn import MOST_WORKSPACE_BYTES
from benchmarks.kernels.report import Goal
from benchmarks.kernels.suites import CUCONV, CUCONV_NETWORKS, PAPERS_BATCHES
from benchmarks.papers import launches, measured
from benchmarks.papers.launches import BLOCKS, FILTER_SIZES, ONES, SECOND_STAGE
from benchmarks.papers.result import OURS, Result, Status
from kernels.convolution.winograd import WinogradConv

COUNTED = {"GoogLeNet": 42, "SqueezeNet": 21, "AlexNet": 4, "ResNet-50": 12, "VGG-19": 9}
"""Table 1: the number of distinct configurations of each network."""

SUITES = "python -m pytest tests/benchmarks/kernels/test_suites.py"
_N = "N(1|8|16|32|64|128|256) (convoy|torch)$"


def results() -> list[Result]:
    """Return a row of docs/papers.md for every result of the paper, in the paper's order."""
    return [*_configurations(), *_speed(), *_counts()]


def _configurations() -> list[Result]:
    found = []
    for network, theirs in COUNTED.items():
        labels = launches.configurations(network)
        served = len(CUCONV_NETWORKS[network])
        same = len(labels) == theirs
        ours = f"{len(labels)}" + (f", and {served - theirs} more" if served != theirs else "")
        found.append(
            Result("table 1", f"{network}: configurations", str(theirs), ours if same else
                   f"{len(labels)}", Status.REPRODUCED if same else Status.IN_PART, SUITES,
                   "" if same else "the paper does not list its configurations; 16"
                   " configurations agree with its statements")
        )  # fmt: skip
    for network, sizes in FILTER_SIZES.items():
        ours_of = launches.sizes(launches.configurations(network))
        close = max(abs(a - b) for a, b in zip(sizes, ours_of, strict=True)) < 0.11
        found.append(
            Result("table 1", f"{network}: 1×1, 3×3, 5×5, %",
                   ", ".join(f"{each:.1f}" for each in sizes),
                   ", ".join(f"{each:.1f}" for each in ours_of),
                   Status.REPRODUCED if close else Status.IN_PART, f"{OURS}sizes",
                   "" if close else "Convoy counts 16 configurations instead of 12")
        )  # fmt: skip
    every = [label for network in COUNTED for label in launches.configurations(network)]
    configurations = len(CUCONV) * len(PAPERS_BATCHES["cuconv"])
    found += [
        Result("section 4.1", "1×1 among all configurations, %", f"{ONES}",
               f"{launches.sizes(every)[0]:.1f}", Status.IN_PART, f"{OURS}sizes",
               "Convoy counts 16 configurations of ResNet-50, of which twelve are 1×1"),
        Result("section 4", "configurations, by 7 values of N", "more than 600",
               str(configurations), Status.BETTER, SUITES),
        Result("table 2", "variants of cuDNN, of which the fastest counts", "7",
               "every plan of every engine and knob", Status.BETTER,
               "python -m pytest tests/benchmarks/kernels/test_baselines_cudnn.py"),
        Result("section 4", "bound of cuDNN's workspace", "1 GB",
               f"{MOST_WORKSPACE_BYTES / 2**30:g} GiB", Status.REPRODUCED,
               "python -m pytest tests/benchmarks/kernels/test_baselines_cudnn.py"),
    ]  # fmt: skip
    return found


def _speed() -> list[Result]:
    every = PAPERS_BATCHES["cuconv"]

    def goal(what: str, theirs: str, only: str, goal: Goal) -> Result:
        return measured.of_goal("section 4.1", what, theirs, only, goal)

    return [
        *measured.figures(),
        goal("1×1, N = 1: mean speed-up", "1.23×", "layer .* 1x1 N1 (convoy|torch)$",
             Goal("cuconv", (1,), "geometric_mean", 1.23, kernel=1)),
        goal("1×1, N = 1: greatest speed-up", "2.29×", "layer .* 1x1 N1 (convoy|torch)$",
             Goal("cuconv", (1,), "greatest", 2.29, kernel=1)),
        goal("5×5, N = 1: mean speed-up", "1.36×", "layer .* 5x5 .*N1 (convoy|torch)$",
             Goal("cuconv", (1,), "geometric_mean", 1.36, kernel=5)),
        goal("5×5, N = 1: greatest speed-up", "1.97×", "layer .* 5x5 .*N1 (convoy|torch)$",
             Goal("cuconv", (1,), "greatest", 1.97, kernel=5)),
        goal("configurations in which cuConv is faster", "8.31%", f"layer .*{_N}",
             Goal("cuconv", every, "won", 0.0831)),
        goal("mean speed-up of these configurations", "1.46×", f"layer .*{_N}",
             Goal("cuconv", every, "mean_of_won", 1.46)),
        *(each for each in measured.named() if each.where.startswith("cuConv")),
    ]  # fmt: skip


def _counts() -> list[Result]:
    found = []
    for where, theirs in BLOCKS.items():
        problem = launches.named(where)
        ours = [launches.blocks(problem, launches.best(problem, each))
                for each in ("coalesced", "gemm")]  # fmt: skip
        found.append(
            Result(where.removeprefix("cuConv, "), "blocks of cuConv, and of two matrix products",
                   ", ".join(f"{each:,}" for each in theirs),
                   f"{ours[0]}; {ours[1]}", Status.IN_PART, f"{OURS}blocks",
                   "one block of Convoy's coalesced kernel does the work of several of the"
                   " paper's blocks. The paper names this as future work. Splitting the channels"
                   " adds blocks")
        )  # fmt: skip
    for where, share in SECOND_STAGE.items():
        ours_of = launches.second_stage(launches.named(where))
        found.append(
            Result(where.removeprefix("cuConv, "), "the second stage's percentage of the time",
                   f"{share:.2%}", f"{ours_of:.1%} by the cost model", Status.IN_PART,
                   f"{OURS}stages", "the cost model estimates Convoy's number. Compared with"
                   " the sums, a launch takes longer than in the paper. Convoy adds the planes in"
                   " the first launch if that is faster")
        )  # fmt: skip
    five = launches.named("cuConv, table 5, A")
    share = launches.transform_share(five, WinogradConv(m=2, r=5, axes=2))
    problem = launches.named("cuConv, table 4, B")
    occupancy = launches.occupancy(problem, launches.best(problem, "coalesced"))
    found += [
        Result("table 5, A", "the transforms' percentage of Winograd's time", "53.3%",
               f"{share:.1%} of the arithmetic", Status.IN_PART, f"{OURS}occupancy",
               "Convoy's F(2×2, 5×5) is a single launch, so the time of its transforms cannot"
               " be measured"),
        Result("section 4.2", "occupancy of the first stage", "86%", f"{occupancy:.0%}",
               Status.IN_PART, f"{OURS}occupancy",
               "Convoy uses fewer threads, each with more sums in registers"),
        measured.on_gpu("section 4.2", "utilisation of compute and memory units", "about 50%",
                        f"layer {problem} N1 convoy$", measured.of_peak(problem, 0.5)),
    ]  # fmt: skip
    return found


def table_occupancy() -> list[tuple[str, ...]]:
    """Return two of Convoy's numbers: the fraction of the arithmetic that the Winograd transforms
    take for configuration A of table 5, and the occupancy for configuration B of table 4."""
    share = launches.transform_share(
        launches.named("cuConv, table 5, A"), WinogradConv(m=2, r=5, axes=2)
    )
    problem = launches.named("cuConv, table 4, B")
    chosen = launches.best(problem, "coalesced")
    occupancy = launches.occupancy(problem, chosen)
    return [
        ("transforms of F(2×2, 5×5)", "kernel", "occupancy"),
        (f"{share:.1%} of the arithmetic", str(chosen), f"{occupancy:.0%}"),
    ]
