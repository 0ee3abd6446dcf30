"""Has a model of clips, which says how a handwritten digit moves, and makes such clips."""

from pathlib import Path

MODEL_PATH = Path(__file__).with_name("moving.onnx")
