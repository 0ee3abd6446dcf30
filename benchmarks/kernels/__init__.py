"""Measures convolutions one by one: docs/kernels.md, "What the planner does", and RESULTS.md."""
