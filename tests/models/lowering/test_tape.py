"""A tape refuses launches with operands that do not match the kernel's."""

from dataclasses import replace

import pytest

from kernels.layout.strided import StridedTensor
from kernels.operations.elementwise import map_launch
from kernels.operations.normalise import normalise_launch
from kernels.problems.precision import FLOAT, HALF, Storage
from models.lowering.tape import BufferOperand, Tape, WeightOperand


def tensor(stored: Storage) -> StridedTensor:
    return StridedTensor.contiguous((2, 8), stored)


@pytest.mark.parametrize("stored", [FLOAT, HALF])
def test_an_operand_must_be_stored_as_the_kernel_declares_it(stored: Storage) -> None:
    other = HALF if stored == FLOAT else FLOAT
    launch = map_launch(tensor(stored), tensor(FLOAT))
    y = BufferOperand("y", 0, FLOAT)
    Tape().emit(launch, x=BufferOperand("x", 0, stored), y=y)
    with pytest.raises(TypeError, match=rf"map<.* takes x as .*, but it is stored as {other}"):
        Tape().emit(launch, x=BufferOperand("x", 0, other), y=y)


def test_a_weight_that_a_kernel_takes_as_floats_must_be_floats() -> None:
    half = BufferOperand("x", 0, HALF)
    weights = StridedTensor.contiguous((8,))
    launch = normalise_launch(tensor(HALF), weights, weights, tensor(HALF), [1], 1e-5)
    scale, shift = WeightOperand("scale", FLOAT), WeightOperand("shift", FLOAT)
    Tape().emit(launch, x=half, y=half, scale=scale, shift=shift)
    with pytest.raises(TypeError, match="takes scale as float, but it is stored as float16"):
        Tape().emit(launch, x=half, y=half, scale=replace(scale, stored=HALF), shift=shift)


def test_what_is_declared_with_restrict_must_be_a_weight() -> None:
    weights = StridedTensor.contiguous((8,))
    launch = normalise_launch(tensor(FLOAT), weights, weights, tensor(FLOAT), [1], 1e-5)
    x, y, weight = BufferOperand("x"), BufferOperand("y"), WeightOperand("scale")
    Tape().emit(launch, x=x, y=y, scale=weight, shift=weight)
    with pytest.raises(TypeError, match="__restrict__, which is allowed only for weights"):
        Tape().emit(launch, x=x, y=y, scale=weight, shift=x)


def test_an_operand_that_is_missing_is_named() -> None:
    with pytest.raises(KeyError, match=r"lacks the operands \['x'\]"):
        Tape().emit(map_launch(tensor(FLOAT), tensor(FLOAT)), y=BufferOperand("y"))
