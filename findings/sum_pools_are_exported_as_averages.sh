#!/usr/bin/env bash
# torch 2.14.1, onnxscript 0.7.2: both exporters of torch.onnx write a sum pool as an average pool.
#
# torch has no sum pool. AvgPool2d(n, divisor_override=1) is one, and any other divisor scales it.
# ONNX's AveragePool has no divisor, so an exporter must multiply by n * n / divisor, or refuse, as
# the older exporter once did (pytorch/pytorch#105349). Today both write AveragePool alone. The
# number that comes out is too small by n * n / divisor, in a file that is valid.
#
# The pixels 1 2 3 4, pooled 2 by 2 to one number by ONNX Runtime 1.31.1. Seen:
#   AvgPool2d, no divisor: torch 2.5, dynamo=True 2.5, dynamo=False 2.5
#   AvgPool2d, divisor 1: torch 10, dynamo=True 2.5, dynamo=False 2.5
#   AvgPool3d, divisor 1: torch 10, dynamo=True 2.5, dynamo=False 2.5
# Expected: one number a line, or an error. Exits with an error if this changes. torch needs 6 GB
# of disk.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.14.1 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.31.1 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import logging
import sys
import warnings

import onnx
import onnxruntime as ort
import torch

logging.disable(logging.WARNING)
warnings.simplefilter("ignore")


def exported(pool, x, dynamo):
    path = f"{sys.argv[1]}/pool.onnx"
    torch.onnx.export(pool, (x,), path, dynamo=dynamo, verbose=False)
    onnx.checker.check_model(path, full_check=True)
    session = ort.InferenceSession(path)
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return y.item()


pixels = torch.tensor([1.0, 2, 3, 4])
seen = []
for name, pool, shape in (
    ("AvgPool2d, no divisor", torch.nn.AvgPool2d(2), (1, 1, 2, 2)),
    ("AvgPool2d, divisor 1", torch.nn.AvgPool2d(2, divisor_override=1), (1, 1, 2, 2)),
    ("AvgPool3d, divisor 1", torch.nn.AvgPool3d((1, 2, 2), divisor_override=1), (1, 1, 1, 2, 2)),
):
    x = pixels.reshape(shape)
    found = [pool(x).item(), *(exported(pool.eval(), x, dynamo) for dynamo in (True, False))]
    seen.append(found)
    print("{}: torch {:g}, dynamo=True {:g}, dynamo=False {:g}".format(name, *found))
assert seen == [[2.5, 2.5, 2.5], [10, 2.5, 2.5], [10, 2.5, 2.5]], "this has changed"
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
