"""Exports a scikit-learn classifier with skl2onnx, with three settings for its outputs. The
classifier's input is a flat row of pixels per image."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from recorded import asked, attempt, record
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier


def main() -> None:
    """Export one classifier of 8 × 8 grey pixels, once with each of the three settings."""
    folder, photographs = asked()
    pixels, digits = load_digits(return_X_y=True)
    names = np.array([f"digit {digit}" for digit in digits])
    for form, classes, options in (
        ("zipmap", names, {}),
        ("class-and-scores", digits, {"zipmap": False}),
        ("columns", digits, {"zipmap": "columns"}),
    ):

        def work(
            form: str = form, classes: Any = classes, options: dict[str, Any] = options
        ) -> None:
            network = MLPClassifier((16,), max_iter=50, random_state=0).fit(pixels, classes)

            def write(place: Path) -> None:
                rows = pixels[:1].astype(np.float32)
                made = to_onnx(network, rows, options={id(network): options}, target_opset=17)
                (place / "model.onnx").write_bytes(made.SerializeToString())

            def answer(image: Image.Image) -> Any:
                row = np.asarray(image.convert("L").resize((8, 8)), np.float32).reshape(1, 64) / 16
                return network.predict_proba(row)[0]

            record(folder, f"scikit-learn-{form}", write, answer, photographs)

        attempt(f"scikit-learn-{form}", work)


if __name__ == "__main__":
    main()
