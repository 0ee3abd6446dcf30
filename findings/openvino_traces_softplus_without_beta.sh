#!/usr/bin/env bash
# OpenVINO 2026.4.1: convert_model of a torch.nn.Module computes another Softplus than convert_model
# of the same module's torch.export, unless beta and threshold are the defaults.
#
# Softplus is log(1 + exp(beta * x)) / beta, and x itself where beta * x is above the threshold.
# OpenVINO reads a module through TorchScript, and an ExportedProgram through FX. The second way
# follows both arguments. The first one drops them, and converts every Softplus with beta 1 and
# threshold 20. convert_model(module, example_input=...) is the call that its documentation shows
# first for PyTorch. OpenVINO's Paddle reader refuses such a Softplus.
#
# x = -1 0 1, torch 2.14.1, OpenVINO on the CPU. Seen:
#   beta 1, threshold 20: torch 0.31 0.69 1.31, exported 0.31 0.69 1.31, module 0.31 0.69 1.31
#   beta 5, threshold 20: torch 0.00 0.14 1.00, exported 0.00 0.14 1.00, module 0.31 0.69 1.31
#   beta 1, threshold 0.5: torch 0.31 0.69 1.00, exported 0.31 0.69 1.00, module 0.31 0.69 1.31
# Expected: the same numbers in a line. No error, no warning of this. Exits with an error if this
# changes. torch needs 6 GB of disk.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.14.1 openvino==2026.4.1 numpy==2.4.6 packaging==26.3
cat > "$folder/run.py" <<'PYTHON'
import openvino as ov
import torch

x = torch.tensor([-1.0, 0, 1])


def text(numbers):
    return " ".join(f"{each:.2f}" for each in numbers)


def converted(source, **options):
    compiled = ov.compile_model(
        ov.convert_model(source, **options), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    return text(compiled([x.numpy()])[0])


for beta, threshold, module_follows in ((1, 20, True), (5, 20, False), (1, 0.5, False)):
    module = torch.nn.Softplus(beta, threshold).eval()
    right = text(module(x))
    exported = converted(torch.export.export(module, (x,)))
    traced = converted(module, example_input=x)
    print(
        f"beta {beta}, threshold {threshold}:"
        f" torch {right}, exported {exported}, module {traced}"
    )
    assert exported == right, "the exported Softplus is wrong"
    assert traced == (right if module_follows else "0.31 0.69 1.31"), "this has changed"
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
