#!/usr/bin/env bash
# onnx 1.23.2, onnx.reference: BatchNormalization of opsets 9 to 13 mixes the mean and the variance
# of the images at hand into those of the file. The scores of an image depend on its batch.
#
# In these opsets, the number of outputs says what a node does: five outputs are training, one is
# inference, which uses the file's mean and variance alone. The reference evaluator trains unless
# momentum is None, which it never is: ONNX gives it a default, 0.9. All convolutional networks that
# were exported with one of these opsets are concerned, where nothing has folded the node. As a
# judge of another runtime, the evaluator calls the right one wrong, unless the test's images have
# the file's mean and variance.
#
# Mean 0, variance 1, scale 1, bias 0, so that y = x. Images of one number, 1 and 3. Seen:
#   opset 13: ONNX Runtime 1 3, reference 0.80 2.80, the first alone 0.95
#   opset 14: ONNX Runtime 1 3, reference 1.00 3.00, the first alone 1.00
# Expected: 1 3, and 1. No error, no warning. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

images = np.array([1, 3], np.float32).reshape(2, 1, 1, 1)


def model(opset):
    statistics = {"scale": 1, "bias": 0, "mean": 0, "variance": 1}
    graph = helper.make_graph(
        [helper.make_node("BatchNormalization", ["x", *statistics], ["y"], epsilon=0.0)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1, 1, 1])],
        [numpy_helper.from_array(np.float32([n]), name) for name, n in statistics.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    checker.check_model(made, full_check=True)
    return made


for opset in (9, 13, 14):
    made = model(opset)
    (expected,) = ort.InferenceSession(made.SerializeToString()).run(None, {"x": images})
    assert np.allclose(expected, images)
    evaluator = ReferenceEvaluator(made)
    both, alone = (evaluator.run(None, {"x": each})[0].ravel() for each in (images, images[:1]))
    if opset == 14:
        assert np.allclose(both, [1, 3]) and np.allclose(alone, [1]), "opset 14 is wrong"
    else:
        assert np.allclose(both, [0.8, 2.8]), "this has changed"
        assert not np.isclose(both[0], alone[0], atol=0.1), "it no longer depends on the batch"
    if opset > 9:
        numbers = "ONNX Runtime {:g} {:g}, reference {:.2f} {:.2f}, the first alone {:.2f}"
        print(f"opset {opset}:", numbers.format(*expected.ravel(), *both, *alone))
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
