"""Contains a model that recognises how a handwritten digit moves, and creates clips for it."""

from pathlib import Path

MODEL_PATH = Path(__file__).with_name("moving.onnx")
