"""ONNX in, an engine out. What `service` may use is re-exported here.

Imports `kernels`, never `service`, and works without a GPU or a driver.
"""
