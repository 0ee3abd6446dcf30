"""Lists the results of Lan et al. 2017, "High Performance Implementation of 3D Convolutional Neural
Networks on a GPU", and Convoy's result for each."""

from benchmarks.kernels.report import Goal
from benchmarks.kernels.suites import C3D
from benchmarks.papers import measured, pipeline
from benchmarks.papers.memory import LAYOUTS, N, sectors_of, stages
from benchmarks.papers.result import OURS, Result, Status
from kernels.convolution.algorithms import candidates
from kernels.convolution.winograd import WinogradConv
from kernels.problems.conv import same_padded

GFLOPS = (88.8, 88.8, 44.4, 5.55)
"""Table 2 for conv2 to conv5 and N = 32. A multiplication and its addition count as one
operation."""

SUITES = "python -m pytest tests/benchmarks/kernels/test_suites.py"
_EVERY = "layer .* 3x3x3 p1,1,1,1,1,1 N32 (convoy|torch|cudnn)$"


def results() -> list[Result]:
    """Return a row of docs/papers.md for every result of the paper, in the paper's order."""
    counted = [N * 1e-9 * layer.problem.macs for layer in C3D]
    algorithm = WinogradConv(m=2, r=3, axes=3)
    saved = C3D[0].problem.macs / algorithm.multiplications(C3D[0].problem)
    fewer = {
        layout: [sectors_of(layer.problem, LAYOUTS[0]) / sectors_of(layer.problem, layout)
                 for layer in C3D]
        for layout in LAYOUTS[1:]
    }  # fmt: skip
    shares, largest = [], []
    for layout in LAYOUTS:
        every = stages(C3D[1].problem.with_batch(N), layout)
        total = sum(each.sectors for each in every)
        shares += [each.sectors / total for each in every if each.name == "filterTransform"]
        most = max(each.sectors for each in every)
        largest.append(" = ".join(each.name for each in every if each.sectors == most))
    data, multiply, inverse = pipeline.moved()
    least = data.least_bytes + inverse.least_bytes
    beyond = (data.bytes + inverse.bytes) / least - 1
    waves = multiply.wavefronts / multiply.least_wavefronts
    same = Status.REPRODUCED
    return [
        Result("section 3.2", "products saved by F(2×2×2, 3×3×3)", "216/64 = 3.375",
               f"{saved:g}", same, "python -m pytest tests/kernels/convolution/test_algorithms.py"),
        Result("section 3.2", "algorithms 1 and 2: nested in 3-D, then as matrix products", "two",
               "fused in one launch, and non-fused", Status.BETTER,
               "python -m pytest tests/kernels/convolution/test_winograd_nonfused.py"),
        measured.on_gpu("table 1", "the GPU", "GTX 1080", _EVERY, measured.device),
        Result("table 2", "conv2 to conv5, G operations, N = 32",
               ", ".join(map(str, GFLOPS)), ", ".join(f"{each:.2f}" for each in counted), same,
               SUITES),
        Result("section 5.2", "conv1, which has 3 channels", "not supported",
               f"supported, by {len(candidates(same_padded((16, 112, 112), 3, 3, 64)))} algorithms",
               Status.BETTER, "python -m pytest tests/benchmarks/networks/test_c3d.py"),
        Result("figure 3", "images side by side (CDHWN): times faster", "3 to 4",
               f"{min(fewer['CDHWN']):.1f} to {max(fewer['CDHWN']):.1f} times fewer sectors",
               Status.IN_PART, f"{OURS}layouts",
               "Convoy counts only sectors; waits can be measured only on a GPU"),
        Result("figure 3", "no kernels that reshape: times faster", "13 to 42",
               f"{min(fewer['no reshape']):.1f} to {max(fewer['no reshape']):.1f} times fewer"
               " sectors", Status.IN_PART, f"{OURS}layouts",
               "Convoy counts only sectors; waits can be measured only on a GPU"),
        Result("figure 3", "memory access of Convoy's transforms and product", "coalesced",
               f"{beyond:.1%} more bytes than necessary; {waves:.2f} times the necessary"
               " wavefronts",
               Status.REPRODUCED if beyond < 0.01 else Status.IN_PART, f"{OURS}pipeline",
               "" if beyond < 0.01 else "not all accesses are coalesced"),
        Result("figure 4", "conv3: the slowest kernel, by version",
               "ReshapeOutput, ReshapeOutput, sgemm", ", ".join(largest),
               same if largest[1:] == ["reshapeOutput", "sgemm"] else Status.IN_PART,
               f"{OURS}shares", "" if largest[1:] == ["reshapeOutput", "sgemm"] else "by sectors"),
        Result("figure 4", "conv3: filterTransform's percentage of the total", "about 0.1%",
               ", ".join(f"{each:.2%}" for each in shares), same, f"{OURS}shares"),
        *(each for each in measured.named() if each.where.startswith("Lan")),
        measured.of_goal("table 3", "least speed-up over cuDNN's SGEMM, N = 32", "1.05×", _EVERY,
                         Goal("c3d", (N,), "least", 1.05)),
        measured.of_total("figure 5", "all four layers, N = 32: SGEMM, FFT, 3-D Winograd", "c3d", N,
                          "132.6, 135.4, 108.2 ms", 132.6 / 108.2, _EVERY),
    ]  # fmt: skip
