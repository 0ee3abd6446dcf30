"""ONNX's node tests with the loader and the reference: passes, refusals and their reasons.

Every test of a single supported operator is loaded with its first input as the image batch and the
rest as constants, because this is how a classifier uses these operators. Only operators that
combine two feature maps (Add, Concat, ...) get several computed operands of the same batch size.
Axis 0 is the batch, so the many node tests that work along axis 0 are refused. The table in the
terminal summary shows all results. A refusal is permitted; a wrong result is not.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from models.errors import UnsupportedModelError
from models.onnx_loader import load_proto
from models.onnx_loader.operators import OPERATORS
from tests.support.models.reference import run_reference
from tests.support.onnx_models import run_onnxruntime

Array = NDArray[np.generic]

# At least so many tests of an operator pass; a release of onnx may add some and take none. The
# node tests of LayerNormalization all ask for what is refused: other tests cover it.
PASSING = {
    "Abs": 1,
    "Add": 2,
    "AveragePool": 20,
    "BatchNormalization": 2,
    "Cast": 4,
    "Clip": 9,
    "Concat": 6,
    "Conv": 6,
    "DepthToSpace": 2,
    "Div": 3,
    "Dropout": 5,
    "Einsum": 0,
    "Elu": 3,
    "Erf": 1,
    "Expand": 1,
    "Flatten": 3,
    "Gather": 1,
    "Gelu": 4,
    "Gemm": 8,
    "GlobalAveragePool": 2,
    "GlobalMaxPool": 2,
    "GroupNormalization": 2,
    "HardSigmoid": 3,
    "HardSwish": 1,
    "Identity": 2,
    "InstanceNormalization": 2,
    "LRN": 2,
    "LayerNormalization": 0,
    "LeakyRelu": 3,
    "LogSoftmax": 6,
    "MatMul": 1,
    "Max": 1,
    "MaxPool": 16,
    "Min": 1,
    "Mish": 1,
    "Mul": 3,
    "Neg": 2,
    "PRelu": 1,
    "Pad": 3,
    "Pow": 1,
    "Reciprocal": 2,
    "ReduceL2": 6,
    "ReduceMax": 6,
    "ReduceMean": 6,
    "ReduceMin": 6,
    "ReduceSum": 8,
    "Relu": 1,
    "Reshape": 6,
    "Resize": 15,
    "Selu": 3,
    "Sigmoid": 2,
    "Slice": 5,
    "Softmax": 6,
    "Softplus": 2,
    "SpaceToDepth": 3,
    "Split": 5,
    "Sqrt": 2,
    "Squeeze": 1,
    "Sub": 3,
    "Sum": 3,
    "Swish": 1,
    "Tanh": 2,
    "Transpose": 2,
    "Unsqueeze": 6,
}
# Most reasons shown for one operator: Cast alone has one for every pair of types.
REASONS = 6
# Operators by which two feature maps meet.
MEETING = {"Add", "Concat", "Div", "Mul", "Sub", "Sum"}


class Outcome(Enum):
    PASSED = "passed"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True)
class Result:
    test: str
    operator: str
    outcome: Outcome
    reason: str = ""


def as_array(tensor: object) -> Array | None:
    """Return a test's input or output as an array; None for sequences and optionals."""
    if isinstance(tensor, TensorProto):
        return numpy_helper.to_array(tensor)
    return np.asarray(tensor) if isinstance(tensor, np.ndarray | np.generic) else None


def split_inputs(
    operator: str, inputs: dict[str, Array]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the inputs that are computed for each image, and the constants."""
    first = next(iter(inputs.values()))
    computed = {
        name: array
        for index, (name, array) in enumerate(inputs.items())
        if index == 0 or (operator in MEETING and array.shape[:1] == first.shape[:1])
    }
    return computed, {name: array for name, array in inputs.items() if name not in computed}


def run_case(case: TestCase) -> Result | None:
    """Return the outcome of one test; None if the test uses anything other than tensors."""
    assert case.model is not None
    assert case.data_sets is not None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    operator = model.graph.node[0].op_type
    ((inputs, outputs),) = case.data_sets
    given = [as_array(tensor) for tensor in inputs]
    wanted = [as_array(tensor) for tensor in outputs]
    arrays = {v.name: a for v, a in zip(model.graph.input, given, strict=True) if a is not None}
    expected = {v.name: a for v, a in zip(model.graph.output, wanted, strict=True) if a is not None}
    if len(arrays) < len(given) or len(expected) < len(wanted):
        return None
    computed, constants = split_inputs(operator, arrays)
    kept = [value for value in model.graph.input if value.name in computed]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    try:
        check_answers(case, model, computed, expected)
    except UnsupportedModelError as error:
        return Result(case.name, operator, Outcome.REFUSED, reason(error))
    except Exception as error:  # noqa: BLE001  whatever else a test raises belongs in the table
        return Result(case.name, operator, Outcome.FAILED, f"{type(error).__name__}: {error}")
    return Result(case.name, operator, Outcome.PASSED)


def check_answers(
    case: TestCase,
    model: onnx.ModelProto,
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
) -> None:
    """Compare both forms of the loaded model with the test's outputs, at the test's own
    tolerance."""
    loaded = load_proto(case.name, model)
    onnx_form = {name: array.astype(np.float32) for name, array in inputs.items()}
    for form, actual in (
        ("reference", run_reference(loaded.graph, inputs)),
        ("onnxruntime", run_onnxruntime(loaded.proto, onnx_form)),
    ):
        for name, array in expected.items():
            wanted = array.astype(np.float64)
            assert actual[name].shape == wanted.shape, (form, actual[name].shape, wanted.shape)
            np.testing.assert_allclose(
                actual[name], wanted, rtol=case.rtol, atol=case.atol, err_msg=form
            )


def reason(error: UnsupportedModelError) -> str:
    """Return the loader's reason without the text that is the same for all of these models."""
    lines = str(error).splitlines()
    listed = [line.strip() for line in lines if line.startswith("  ")]
    text = re.sub(r" \(in [^()]*; 1 node\)|^\w+: ", "", (listed or lines)[0])
    return re.sub(r"^input \w+ holds \w+", "its input holds another type", text)


def table(results: Sequence[Result]) -> str:
    """Return one row per operator; under it, the reasons for refusals and failures."""
    lines = [f"{'ONNX backend node tests':<28}" + "".join(f"{o.value:>8}" for o in Outcome)]

    def row(title: str, chosen: Sequence[Result]) -> str:
        counts = Counter(result.outcome for result in chosen)
        return f"{title:<28}" + "".join(f"{counts[outcome]:>8}" for outcome in Outcome)

    for operator in sorted(OPERATORS):
        of_it = [result for result in results if result.operator == operator]
        lines.append(row(operator, of_it))
        reasons = Counter((r.outcome, r.reason) for r in of_it if r.outcome is not Outcome.PASSED)
        lines += [
            f"    {count} {outcome.value}: {why.splitlines()[0][:110]}"
            for (outcome, why), count in reasons.most_common(REASONS)
        ]
        if len(reasons) > REASONS:
            lines.append(f"    and {len(reasons) - REASONS} more")
    return "\n".join([*lines, row("all", results)])


@pytest.mark.filterwarnings(r"ignore::RuntimeWarning:onnx\.backend\..*")  # making its tests
def test_every_supported_operator_passes_the_node_tests_that_the_loader_accepts(
    record_property: Callable[[str, object], None],
) -> None:
    results = [
        result
        for case in load_model_tests(kind="node")
        if case.model is not None
        and len(case.model.graph.node) == 1
        and case.model.graph.node[0].domain == ""
        and case.model.graph.node[0].op_type in OPERATORS
        and (result := run_case(case)) is not None
    ]
    record_property("summary", table(results))
    failed = [f"{r.test}: {r.reason}" for r in results if r.outcome is Outcome.FAILED]
    assert not failed, "\n".join(failed)
    passed = Counter(r.operator for r in results if r.outcome is Outcome.PASSED)
    assert {op: (passed[op], least) for op, least in PASSING.items() if passed[op] < least} == {}
    # These have integers as inputs or outputs, which the loader takes inside a network alone.
    inside = {"DequantizeLinear", "QuantizeLinear"}
    assert set(PASSING) == set(OPERATORS) - inside
