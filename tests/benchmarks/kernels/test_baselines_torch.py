"""PyTorch as a baseline, on the CPU; graphs are captured, but replay nothing."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.kernels.baselines_torch import (
    CONVOLUTIONS,
    IM2COL,
    BaselineError,
    CudaRuntime,
    Form,
    Tensors,
    TorchCandidate,
    im2col_candidates,
    tensors_of,
    torch_candidates,
)
from benchmarks.kernels.contest import Cache, CandidateError, contest
from benchmarks.kernels.sides import ContestSide
from benchmarks.kernels.suites import C3D
from cusim.device import CusimDevice
from kernels.problems.conv import ConvProblem, same_padded
from kernels.problems.precision import Precision
from kernels.problems.window import Window
from tests.support.benchmarks.cpu_torch import (
    DEEP,
    FLAT,
    QUICK,
    CpuRuntime,
    opened_device,
)
from tests.support.kernels import reference


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = opened_device()
    yield device
    device.close()


STRIDED = replace(
    FLAT, window=Window((5, 6), (3, 3), (2, 1), (1, 2), (1, 2), (1, 2), output=(3, 6))
)
POINTWISE = same_padded((5, 6), 1, 4, 8).with_batch(2)


@pytest.mark.parametrize(
    ("problem", "form"),
    [
        *((problem, form) for problem in (FLAT, DEEP) for form in CONVOLUTIONS),
        *((problem, IM2COL) for problem in (FLAT, STRIDED, POINTWISE)),
    ],
    ids=str,
)
def test_pytorch_computes_the_problem_in_every_form(
    device: CusimDevice, problem: ConvProblem, form: Form
) -> None:
    tensors = Tensors(CpuRuntime(), problem)
    ((x, weight),) = tensors.sets(Cache.WARM, form.channels_last, 2)
    assert (x.stride()[1] == 1) is form.channels_last
    assert x.abs().max() <= 1
    assert weight.abs().max() <= 1
    y = form.compute(tensors, x, weight)
    expected = reference.conv(x.double().numpy(), weight.double().numpy(), problem)
    assert np.allclose(y, expected, rtol=1e-5, atol=1e-5)
    candidate = TorchCandidate(device, tensors, form)
    candidate.check()
    for cache in Cache:
        assert candidate.time(cache, copies=2, replays=2).p50_us > 0


def test_an_answer_is_the_truth_only_to_float32s_precision() -> None:
    tensors = Tensors(CpuRuntime(), FLAT)
    y = tensors.convolve(tensors.x, tensors.weight)
    tensors.check(y)
    rounded = ((each * 2**10).round() / 2**10 for each in (tensors.x, tensors.weight))
    with pytest.raises(CandidateError, match=r"relative error [2-9]\.\de-04"):
        tensors.check(tensors.convolve(*rounded))
    y[0, 0, 0, 0] = float("nan")
    with pytest.raises(CandidateError, match="relative error nan"):
        tensors.check(y)


def test_in_fp16_data_are_halves_and_so_is_the_tolerance(device: CusimDevice) -> None:
    half = replace(FLAT, precision=Precision.FP16)
    tensors = Tensors(CpuRuntime(), half)
    ((x, weight),) = tensors.sets(Cache.WARM, True, 1)
    assert (x.element_size(), weight.element_size()) == (2, 2)
    outcome = contest(torch_candidates(device, tensors), QUICK)
    assert outcome.refused == {}
    with pytest.raises(CandidateError, match="wrong"):
        tensors.check(1.01 * tensors.convolve(x, weight))
    with pytest.raises(BaselineError, match="fp32 and fp16"):
        Tensors(CpuRuntime(), replace(FLAT, precision=Precision.TF32))


def test_as_many_sets_are_made_as_keep_a_cache_cold() -> None:
    tensors = Tensors(CpuRuntime(), C3D[3].problem)
    sets = tensors.sets(Cache.COLD, True, 200)
    nbytes = sum(each.nbytes for each in sets[0]) + 4 * 256 * 2 * 7 * 7
    assert (len(sets) - 2) * nbytes <= 180_000_000 < (len(sets) - 1) * nbytes
    assert len({x.data_ptr() for x, _ in sets}) == len(sets)
    assert sets[0][0].stride() == sets[-1][0].stride()
    for numbers in (each for pair in sets[:3] for each in pair):
        assert float(numbers.std()) == pytest.approx(3**-0.5, rel=0.02)
        assert numbers.abs().max() <= 1


def test_pytorchs_best_layout_wins(device: CusimDevice) -> None:
    outcome = contest(torch_candidates(device, Tensors(CpuRuntime(), FLAT)), QUICK)
    assert outcome.tried == 2
    assert outcome.refused == {}
    assert {winner.name for winner in outcome.winners.values()} <= {"NCHW", "NHWC"}


def test_what_pytorch_cannot_do_is_refused_with_its_words(device: CusimDevice) -> None:
    tensors = Tensors(CpuRuntime(), FLAT)
    tensors.weight = tensors.weight[:, :2]
    with pytest.raises(CandidateError, match="channels"):
        TorchCandidate(device, tensors, CONVOLUTIONS[0]).check()


def test_what_pytorch_computes_is_held_to_the_truth(device: CusimDevice) -> None:
    tensors = Tensors(CpuRuntime(), FLAT)
    tensors.x = tensors.x.flip(0)
    with pytest.raises(CandidateError, match="wrong"):
        TorchCandidate(device, tensors, CONVOLUTIONS[1]).check()


def test_im2col_says_what_its_matrix_takes_and_refuses_what_unfold_cannot_copy(
    device: CusimDevice,
) -> None:
    (candidate,) = im2col_candidates(device, Tensors(CpuRuntime(), FLAT))
    assert candidate.workspace_bytes == 4 * 2 * (4 * 9) * (5 * 6)
    outcome = contest([candidate], QUICK)
    assert {winner.workspace_bytes for winner in outcome.winners.values()} == {8640}
    with pytest.raises(CandidateError, match="2-D"):
        im2col_candidates(device, Tensors(CpuRuntime(), DEEP))


def test_pads_that_differ_are_said_to_be_none_of_pytorchs() -> None:
    uneven = Window((5, 5), (3, 3), (1, 1), (1, 1), (1, 0), (0, 1), (4, 4))
    with pytest.raises(BaselineError, match="padding"):
        Tensors(CpuRuntime(), ConvProblem(1, 4, 4, uneven))


def test_a_problem_that_pytorch_cannot_take_is_refused_with_its_words(
    device: CusimDevice,
) -> None:
    uneven = Window((5, 5), (3, 3), (1, 1), (1, 1), (1, 0), (0, 1), (4, 4))
    side = ContestSide(
        "torch", lambda each: torch_candidates(device, tensors_of(CpuRuntime(), each)), QUICK
    )
    outcome = side.measure(ConvProblem(1, 4, 4, uneven))
    assert outcome.winners == {}
    assert "needs the same padding" in outcome.refused["torch"]


def test_without_a_gpu_pytorch_is_no_side() -> None:
    with pytest.raises(BaselineError, match="no CUDA GPU"):
        CudaRuntime()
