"""The built-in model: handwritten, drawn and printed digits, in pictures of any size.

`digits.onnx` with `digits.toml` and `labels.txt` is what is served; the Python files made it
(`make train`) and nothing imports them at run time.
"""

from pathlib import Path

MODEL_PATH = Path(__file__).with_name("digits.onnx")
