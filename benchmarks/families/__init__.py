"""Families of convolutional classifiers: what loads, launches and errors of each.

python -m benchmarks.families export, then check.
"""
