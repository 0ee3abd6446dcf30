"""Compares Convoy's answers with the answers of exporters' own pipelines. An exporter is a library,
such as PyTorch or optimum, that writes models as ONNX files."""
