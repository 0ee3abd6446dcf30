"""Contains the built-in model, which recognises handwritten, drawn and printed digits.

The server uses only `digits.onnx`, `digits.toml` and `labels.txt`. The Python files create these
files (`make train`) and are not imported at run time.
"""

from pathlib import Path

MODEL_PATH = Path(__file__).with_name("digits.onnx")
