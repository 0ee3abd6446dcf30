#!/usr/bin/env bash
# ONNX Runtime 1.31.1: a Resize that keeps the aspect ratio returns its input as it is, if its axes
# are counted from the end.
#
# Resize has sizes for the axes that its attribute axes lists. ONNX allows -2, -1 for the last two,
# which is how one writes "height and width" whatever stands in front of them. ONNX Runtime follows
# that as long as keep_aspect_ratio_policy is stretch, the default. With not_larger or not_smaller,
# the image keeps its old size, with optimisations and without. ONNX's shape inference finds the
# right size for both.
#
# An image of 4 by 8, resized to sizes 8 and 32. Seen:
#   stretch: inferred 8x32, axes 2 3 give 8x32, axes -2 -1 give 8x32
#   not_larger: inferred 8x16, axes 2 3 give 8x16, axes -2 -1 give 4x8
#   not_smaller: inferred 16x32, axes 2 3 give 16x32, axes -2 -1 give 4x8
# Expected: one size a line. Nothing is raised: ONNX Runtime logs a warning if the file states the
# size of the image, and none if it does not, as here. Exits with an error if this changes.
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
from onnx import TensorProto, checker, helper, numpy_helper, shape_inference

x = np.arange(32, dtype=np.float32).reshape(1, 1, 4, 8)


def model(policy, axes, shape):
    resize = helper.make_node(
        "Resize", ["x", "", "", "sizes"], ["y"], axes=axes, keep_aspect_ratio_policy=policy
    )
    graph = helper.make_graph(
        [resize],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)],
        [numpy_helper.from_array(np.array([8, 32]), "sizes")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    checker.check_model(made, full_check=True)
    return made


def inferred(policy, axes):
    known = shape_inference.infer_shapes(model(policy, axes, x.shape)).graph.output[0]
    return "x".join(str(each.dim_value) for each in known.type.tensor_type.shape.dim[2:])


def returned(policy, axes):
    found = set()
    file = model(policy, axes, [1, 1, "height", "width"]).SerializeToString()
    for level in (
        ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
        ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    ):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        (y,) = ort.InferenceSession(file, options).run(None, {"x": x})
        if y.shape == x.shape:
            assert np.array_equal(y, x)
        found.add("x".join(map(str, y.shape[2:])))
    (size,) = found
    return size


expected = {
    "stretch": ("8x32", "8x32", "8x32"),
    "not_larger": ("8x16", "8x16", "4x8"),
    "not_smaller": ("16x32", "16x32", "4x8"),
}
for policy, sizes in expected.items():
    assert inferred(policy, [2, 3]) == inferred(policy, [-2, -1])
    found = (inferred(policy, [-2, -1]), returned(policy, [2, 3]), returned(policy, [-2, -1]))
    print("{}: inferred {}, axes 2 3 give {}, axes -2 -1 give {}".format(policy, *found))
    assert found == sizes, "this has changed"
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
