"""Contains all code that runs on a device, and the problems and references that check this code.

Imports neither `models` nor `service`, and works without a GPU or a driver.
"""
