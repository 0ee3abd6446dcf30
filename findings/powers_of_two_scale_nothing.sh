#!/usr/bin/env bash
# NumPy 2.4.6: scaling Winograd's transforms by powers of two changes no bit of a float32 result.
# Of F(9×9, 5×5) it is said that scaling and better points lower the error by two orders of magnitude. In float32 the points do all of it; scaling, which is often
# what is tried first, moves exponents alone. It decides in float16, whose range ends.
#
# F(9, 5) in one dimension, 64 channels. Largest error over that of a direct sum, seen:
#   points 0, ±1 to ±5, 6:          5e+05 as they are, 5e+05 scaled, the same bits: True
#   points 0, ±1, ±1/2, ±2, ...:    6e+01 as they are, 6e+01 scaled, the same bits: True
# Expected of scaling: a smaller error. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np

M, R, C, N = 9, 5, 64, 500
rng = np.random.default_rng(0)
d = rng.uniform(-1, 1, (N, C, M + R - 1)).astype(np.float32)
g = rng.uniform(-1, 1, (C, R)).astype(np.float32)
truth = np.zeros((N, M))
direct = np.zeros((N, M), np.float32)
for k in range(R):
    for c in range(C):
        truth += d[:, c, k : k + M].astype(np.float64) * float(g[c, k])
        direct += d[:, c, k : k + M] * g[c, k]
least = float(np.abs(direct - truth).max())


def matrices(points):
    at = np.array([[a**j for a in points] + [j == M - 1] for j in range(M)], np.float64)
    f = [np.prod([a - b for b in points if b != a]) for a in points]
    G = np.array([[a**k / e for k in range(R)] for a, e in zip(points, f)] + [[0] * 4 + [1]])
    rows = [np.append(np.poly([b for b in points if b != a])[::-1], 0) for a in points]
    return at, G, np.array([*rows, np.poly(points)[::-1]])


def outputs(points, scaled):
    at, G, bt = matrices(points)
    if scaled:
        of_g, of_bt = (2.0 ** np.rint(-np.log2(np.linalg.norm(m, axis=1))) for m in (G, bt))
        at, G, bt = at / (of_g * of_bt), G * of_g[:, None], bt * of_bt[:, None]
    u = (g.astype(np.float64) @ G.T).astype(np.float32)
    m = np.zeros((N, M + R - 1), np.float32)
    for c in range(C):
        v = np.zeros_like(m)
        for i in range(M + R - 1):
            v += d[:, c, i, None] * bt[:, i].astype(np.float32)
        m += v * u[c]
    y = np.zeros((N, M), np.float32)
    for i in range(M + R - 1):
        y += m[:, i, None] * at[:, i].astype(np.float32)
    return y


sets = {
    "0, ±1 to ±5, 6:": (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6),
    "0, ±1, ±1/2, ±2, ...:": (0, 1, -1, 0.5, -0.5, 2, -2, 0.75, -0.75, 4 / 3, -4 / 3, -0.25),
}
worst = []
for name, points in sets.items():
    plain, scaled = (outputs(points, each) for each in (False, True))
    of_plain, of_scaled = (float(np.abs(y - truth).max()) / least for y in (plain, scaled))
    same = np.array_equal(plain, scaled)
    worst.append(of_plain)
    print(f"points {name:24} {of_plain:.0e} as they are, {of_scaled:.0e} scaled, the same bits: {same}")
    assert same, "scaling by powers of two changes a float32 result"
assert worst[0] > 100 * worst[1], "the points no longer lower the error by two orders"
PYTHON
