"""The activations at the end of each kernel, and their parameters."""

from math import inf

import pytest

from kernels.device.launch import instantiate
from kernels.operations.epilogue import commonest, epilogue_arguments, finish, variants
from kernels.problems.activation import RELU, Activation, ActivationKind
from tests.support.cases import CASES, INSTANTIATIONS

_CLIP = Activation(ActivationKind.CLIP, 0.0, 6.0)
_CLAMP = instantiate("linear.cu", "linear", rows=1, finish="Finish::CLAMP")
_ANY = instantiate("linear.cu", "linear", rows=1, finish="Finish::ANY")
_WITHOUT = instantiate("lrn.cu", "lrn", t="float")


@pytest.mark.parametrize(
    ("activation", "bounds"),
    [(None, (-inf, inf)), (RELU, (0.0, inf)), (_CLIP, (0.0, 6.0))],
    ids=str,
)
def test_no_activation_relu_and_clip_clamp(
    activation: Activation | None, bounds: tuple[float, float]
) -> None:
    assert finish(activation) == "Finish::CLAMP"
    arguments = epilogue_arguments(activation)
    assert (arguments["a"], arguments["b"]) == bounds


@pytest.mark.parametrize(
    "kind",
    sorted(set(ActivationKind) - {ActivationKind.RELU, ActivationKind.CLIP}, key=str),
    ids=str,
)
def test_all_other_activations_share_a_kernel_and_keep_their_numbers(kind: ActivationKind) -> None:
    activation = Activation(kind, 0.3, 0.7)
    assert finish(activation) == "Finish::ANY"
    arguments = epilogue_arguments(activation)
    assert (arguments["a"], arguments["b"]) == (0.3, 0.7)


def test_a_kernel_with_an_epilogue_has_two_variants_and_others_one() -> None:
    assert variants(_CLAMP) == variants(_ANY) == (_CLAMP, _ANY)
    assert commonest(_ANY) == commonest(_CLAMP) == _CLAMP
    assert variants(_WITHOUT) == (_WITHOUT,)


def test_every_kernel_with_an_epilogue_runs_in_some_case_with_each_variant() -> None:
    run = {launch.instantiation for case in CASES for launch in case.launches}
    names = {(each.source, each.kernel) for each in INSTANTIATIONS if each != commonest(each)}
    assert names
    assert names <= {(each.source, each.kernel) for each in run if each != commonest(each)}
    assert names <= {(each.source, each.kernel) for each in run if each == commonest(each)}
