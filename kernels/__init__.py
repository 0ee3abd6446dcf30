"""Contains everything that runs on a device, and the problems and references it is checked with.

Imports neither `models` nor `service`, and works without a GPU or a driver.
"""
