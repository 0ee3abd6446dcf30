"""What runs a classifier: the engine protocol, its CUDA and ONNX Runtime engines, the choice."""
