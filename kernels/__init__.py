"""Contains everything a device runs: problems, algorithms, references and CUDA kernels.

Imports neither `models` nor `service`, and works without a GPU or a driver.
"""
