"""Compares Convoy's answers with the answers of the exporters' own pipelines. An exporter is a
library that writes models as ONNX files, such as PyTorch or optimum."""
