#!/usr/bin/env bash
# NumPy 2.4.6: whether Winograd's F(2×2, 3×3) errs less or more than a direct convolution in float32
# depends on how the direct one adds. Lavin & Gray 2015 (table 4) say less, of GPU kernels, which add
# one product after another. Beside a direct convolution by numpy.matmul, which adds in parts, a
# reader who checks it finds the opposite.
#
# A 3×3 convolution of 256 channels, data and filters uniform in [-1, 1]; F(2×2)'s own sums one
# product after another. Its largest error against float64, seen:
#   0.43 times that of a direct sum, one product after another
#   2.34 times that of a direct sum by matmul
# The second depends on the processor. Exits with an error if the two no longer lie on different sides of 1.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

rng = np.random.default_rng(0)
C, K, SIZE = 256, 16, 24
x = np.pad(rng.uniform(-1, 1, (C, SIZE, SIZE)).astype(np.float32), ((0, 0), (1, 1), (1, 1)))
w = rng.uniform(-1, 1, (K, C, 3, 3)).astype(np.float32)
windows = sliding_window_view(x, (3, 3), (1, 2))  # C, SIZE, SIZE, 3, 3
columns = windows.transpose(3, 4, 0, 1, 2).reshape(9 * C, -1)
rows = w.transpose(0, 2, 3, 1).reshape(K, 9 * C)
truth = rows.astype(np.float64) @ columns


def one_by_one(left, right):
    """Return left @ right over the last two axes. Like fused multiply-adds, each sum rounds once."""
    total = np.zeros((*left.shape[:-1], right.shape[-1]), np.float32)
    for i in range(right.shape[-2]):
        total += left[..., :, i, None].astype(np.float64) * right[..., None, i, :]
    return total


BT = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float32)
G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
AT = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float32)
tiles = sliding_window_view(x, (4, 4), (1, 2))[:, ::2, ::2]
v = BT @ tiles @ BT.T
u = (G @ w @ G.T).astype(np.float32)
n = SIZE // 2
m = one_by_one(u.reshape(K, C, 16).transpose(2, 0, 1), v.reshape(C, n * n, 16).transpose(2, 0, 1))
y = AT @ m.transpose(1, 2, 0).reshape(K, n, n, 4, 4) @ AT.T
y = y.transpose(0, 1, 3, 2, 4).reshape(K, -1)


def largest(found):
    return float(np.abs(found - truth).max())


sequential, parts = (largest(each) for each in (one_by_one(rows, columns), rows @ columns))
print(f"{largest(y) / sequential:.2f} times that of a direct sum, one product after another")
print(f"{largest(y) / parts:.2f} times that of a direct sum by matmul")
assert largest(y) < sequential, "F(2x2) errs more than a direct sum"
assert largest(y) > parts, "F(2x2) errs less than a direct sum by matmul, too"
PYTHON
