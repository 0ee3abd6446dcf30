"""Measures single convolutions. The results are in docs/kernels.md, "What the planner does", and in
RESULTS.md."""
