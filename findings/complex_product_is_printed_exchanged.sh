#!/usr/bin/env bash
# NumPy 2.4.6, as the judge of a printed formula: equation 16 of Lavin & Gray 2015 ("Fast Algorithms
# for Convolutional Neural Networks", arXiv 1509.09308), a complex product by three real ones.
#
# It is printed as [uc·va + ua·vc, i(ua·vc - ub·vb)], with equation 17's ua = x0, ub = x0 + x1,
# uc = x1 - x0, va = y0, vb = y1, vc = y0 + y1: the real part first, then the imaginary one. Both sums
# are right, but in the other order: the first is the imaginary part. Equation 18 inherits it. Seen:
#   printed (14, 23), the product (23+14j)
# Expected: 23 first. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np


def printed(x, y):
    ua, ub, uc = x.real, x.real + x.imag, x.imag - x.real
    va, vb, vc = y.real, y.imag, y.real + y.imag
    return uc * va + ua * vc, ua * vc - ub * vb


first, second = printed(3 + 4j, 5 - 2j)
print(f"printed ({first:g}, {second:g}), the product {(3 + 4j) * (5 - 2j)}")
rng = np.random.default_rng(0)
x, y = (rng.normal(size=1000) + 1j * rng.normal(size=1000) for _ in range(2))
first, second = printed(x, y)
assert np.allclose(first, (x * y).imag), "the first sum is no longer the imaginary part"
assert np.allclose(second, (x * y).real), "the second sum is no longer the real part"
assert not np.allclose(first, (x * y).real), "the printed order is right"
PYTHON
