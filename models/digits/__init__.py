"""Contains the built-in model: handwritten, drawn and printed digits, in images of any size.

The server uses `digits.onnx`, `digits.toml` and `labels.txt`; the Python files create them (`make
train`) and are not imported at run time.
"""

from pathlib import Path

MODEL_PATH = Path(__file__).with_name("digits.onnx")
