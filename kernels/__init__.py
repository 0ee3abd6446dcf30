"""Everything a device runs: problems, algorithms, references and (on a GPU) CUDA kernels.

Imports neither `models` nor `service`, and works without a GPU or a driver.
"""
