"""A new algorithm is a class, a source file and a row in the table; no other file names it."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path

import numpy as np
import pytest

from cusim.device import CusimDevice
from kernels.convolution import algorithms
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.convolution.rounding import direct_rounding
from kernels.convolution.work import NO_INNER_LOOPS, Work
from kernels.device import launch as launches
from kernels.device.device import Instantiation
from kernels.device.gpus import H200
from kernels.device.launch import Launch, instantiate, launch
from kernels.layout.operands import ConvTensors, Filter
from kernels.problems.architectures import Architectures
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.tuning import profiles
from kernels.tuning.heuristic import choose
from kernels.tuning.profile_table import UnprofiledKernelError
from models import BUILT_IN_MODEL, load_classifier
from models.engines.tolerance import network_tolerance
from models.graph import Conv
from tests.support.cases.conv import conv_case
from tests.support.kernels.conv_layers import Layer, dense
from tests.support.kernels.kernel_case import run
from tests.support.kernels.mutations import copied
from tests.support.kernels.windows import conv_problem, window

SOURCE = """\
#include "common.cuh"

__global__ void conv_toy(const float* x, const float* __restrict__ weight, const float* bias,
                         float* y, int outputs, int channels, int filters) {
  follow_previous();
  const unsigned i = thread_index();
  if (i >= unsigned(outputs)) return;
  const int filter = int(i % filters);
  float sum = bias ? bias[filter] : 0.0f;
  for (int c = 0; c < channels; ++c)
    sum = fmaf(x[i / filters * channels + c], weight[filter * channels + c], sum);
  y[i] = sum;
}
"""
THREADS = 64


@dataclass(frozen=True)
class ToyConv:
    """A thread an output of 1×1 filters, with a bias at most."""

    name: str = "toy"

    def supports(self, problem: ConvProblem) -> str | None:
        plain = problem.window.is_pointwise and problem.groups == 1 and problem.prologue is None
        return None if plain and problem.precision is Precision.FP32 else "it is a toy"

    def multiplications(self, problem: ConvProblem) -> int:
        return problem.macs

    def arithmetic(self, problem: ConvProblem) -> Precision:
        return problem.precision

    def rounding(self, problem: ConvProblem, config: str) -> float:
        return 7 * direct_rounding(problem)

    def configs(self, problem: ConvProblem) -> tuple[str, ...]:
        return ("",)

    def work(self, problem: ConvProblem, config: str) -> tuple[Work]:
        blocks = ceil(_outputs(problem) / THREADS)
        return (
            Work(_kernel(), blocks, THREADS, 0, 8 * THREADS * problem.c, NO_INNER_LOOPS, *[0] * 5),
        )

    def workspace(self, problem: ConvProblem, config: str) -> Mapping[str, int]:
        return {}

    def counter_bytes(self, problem: ConvProblem, config: str) -> int:
        return 0

    def filter_form(self, problem: ConvProblem, config: str) -> str:
        return "filters x channels"

    def prepare_filter(self, weight: Filter, problem: ConvProblem, config: str) -> Filter:
        return np.ascontiguousarray(weight.reshape(problem.k, problem.c))

    def launches(self, problem: ConvProblem, config: str, tensors: ConvTensors) -> tuple[Launch]:
        outputs = _outputs(problem)
        return (
            launch(
                _kernel(),
                (ceil(outputs / THREADS), 1, 1),
                (THREADS, 1, 1),
                x="x",
                weight="weight",
                bias=tensors.given["bias"],
                y="y",
                outputs=outputs,
                channels=problem.c,
                filters=problem.k,
            ),
        )


def _outputs(problem: ConvProblem) -> int:
    return problem.n * prod(problem.window.output) * problem.k


def _kernel() -> Instantiation:
    return instantiate("toy.cu", "conv_toy", Architectures(80))


TOY = ToyConv()
CHOICE = ConvChoice(TOY, "")
PROBLEM = conv_problem(2, 5, 6, window((4, 5), (1, 1)))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the sources with the toy's kernel, and add the toy to the algorithms."""
    root = copied(tmp_path)
    (root / "toy.cu").write_text(SOURCE, encoding="utf-8")
    monkeypatch.setattr(launches, "SOURCE_ROOT", root)
    monkeypatch.setattr(algorithms, "ALGORITHMS", (*algorithms.ALGORITHMS, TOY))
    return root


def test_it_runs(root: Path) -> None:
    with closing(CusimDevice(source_root=root)) as device:
        run(conv_case(Layer("toy", PROBLEM, dense(5), dense(6)), CHOICE), device)


@pytest.mark.usefixtures("root")
def test_it_is_chosen_from_where_it_can_run() -> None:
    assert CHOICE in choices(PROBLEM)
    assert CHOICE in choices(PROBLEM, architecture="90a")
    assert CHOICE not in choices(PROBLEM, architecture="75")
    assert CHOICE not in choices(replace(PROBLEM, precision=Precision.TF32))


@pytest.mark.usefixtures("root")
def test_its_rounding_is_that_of_scores() -> None:
    graph = load_classifier(BUILT_IN_MODEL).rewritten.graph
    convs = [node.problem for node in graph.nodes if isinstance(node, Conv)]
    more = 6 * sum(map(direct_rounding, convs)) * float(np.finfo(np.float32).eps) / 2
    toy = network_tolerance(graph, lambda _: CHOICE)
    assert toy == pytest.approx(network_tolerance(graph) + more)


@pytest.mark.usefixtures("root")
def test_its_kernel_gets_a_profile_and_has_none_before() -> None:
    with pytest.raises(UnprofiledKernelError, match=r"python -m kernels\.tuning\.profiles"):
        choose(PROBLEM, choices(PROBLEM), H200)
    profiles.launches.cache_clear()
    try:
        assert _kernel() in profiles.profiled("90a", ["toy.cu"])
        assert profiles.profiled("75", ["toy.cu"]) == []
    finally:
        profiles.launches.cache_clear()
