"""Decides which kernels a network runs: measured on the device, read back, compiled ahead of
time.
"""
