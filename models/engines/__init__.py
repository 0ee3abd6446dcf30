"""Engines, which run a classifier: their protocol, CUDA, ONNX Runtime, and which one to open."""
