"""Quantizes small networks with a quantizer: "onnxruntime", "nncf" or "modelopt".

small_networks.py and torchvision_models.py write the float models beforehand.
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image
from recorded import asked, attempt, record, resized, softmax

QUANTIZER = sys.argv[3]
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLOAT = (
    "pytorch-old-logits",
    "pytorch-old-separable",
    "torchvision-resnet18",
    "torchvision-mobilenet_v2",
)


def pixels(image: Image.Image) -> Any:
    """Return the pixels, 1×3×224×224, that the float models take."""
    parts = resized(image, 224, 256).astype(np.float32) / 255
    normalised = (parts - np.float32(MEAN)) / np.float32(DEVIATION)
    return np.ascontiguousarray(normalised.transpose(2, 0, 1)[None])


def by_onnxruntime(source: Path, target: Path, seen: list[Any], form: str) -> None:
    """Quantize a model with ONNX Runtime's quantizer. `form` is the format of the result:
    "qdq-u8s8", "qdq-s8s8" or "qoperator"."""
    from onnxruntime import quantization as q

    class Reader(q.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left: Iterator[Any] = iter({"pixels": each} for each in seen)

        def get_next(self) -> Any:
            return next(self.left, None)

    prepared = target.with_name("prepared.onnx")
    q.shape_inference.quant_pre_process(str(source), str(prepared))
    q.quantize_static(
        str(prepared),
        str(target),
        Reader(),
        quant_format=q.QuantFormat.QOperator if form == "qoperator" else q.QuantFormat.QDQ,
        activation_type=q.QuantType.QInt8 if form == "qdq-s8s8" else q.QuantType.QUInt8,
        weight_type=q.QuantType.QInt8,
        per_channel=True,
    )
    prepared.unlink()


def by_nncf(source: Path, target: Path, seen: list[Any], form: str) -> None:
    """Quantize a model with NNCF, with one of NNCF's presets."""
    import nncf
    import onnx

    preset = {
        "mixed": nncf.QuantizationPreset.MIXED,
        "performance": nncf.QuantizationPreset.PERFORMANCE,
    }
    data = nncf.Dataset(seen, lambda each: {"pixels": each})
    onnx.save(nncf.quantize(onnx.load(source), data, preset=preset[form]), str(target))


def by_modelopt(source: Path, target: Path, seen: list[Any], form: str) -> None:
    """Quantize a model to int8 with TensorRT's Model Optimizer."""
    from modelopt.onnx import quantization

    quantization.quantize(
        str(source),
        quantize_mode=form,
        calibration_data={"pixels": np.concatenate(seen)},
        calibration_eps=["cpu"],
        output_path=str(target),
    )


QUANTIZERS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "onnxruntime": (by_onnxruntime, ("qdq-u8s8", "qdq-s8s8", "qoperator")),
    "nncf": (by_nncf, ("mixed", "performance")),
    "modelopt": (by_modelopt, ("int8",)),
}


def main() -> None:
    """Quantize each float model with each setting of the quantizer."""
    folder, photographs = asked()
    seen = [pixels(Image.open(photograph).convert("RGB")) for photograph in photographs]
    quantize, forms = QUANTIZERS[QUANTIZER]
    for source in FLOAT:
        for form in forms:
            name = f"{QUANTIZER}-{form}-{source.split('-', 1)[1]}"

            def work(source: str = source, form: str = form, name: str = name) -> None:
                def write(place: Path) -> None:
                    quantize(folder / source / "model.onnx", place / "model.onnx", seen, form)
                    labels = folder / source / "labels.txt"
                    if labels.exists():
                        shutil.copy(labels, place)

                def answer(image: Image.Image, *, joined: bool = form == "qoperator") -> Any:
                    file = str(folder / name / "model.onnx")
                    options = onnxruntime.SessionOptions()
                    # Without this option, sums of bytes saturate on processors without VNNI.
                    options.add_session_config_entry("session.x64quantprecision", "1")
                    if not joined:
                        level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
                        options.graph_optimization_level = level
                    elif form == "int8":  # it changes the scores of Model Optimizer's ResNet
                        key = "optimization.disable_specified_optimizers"
                        options.add_session_config_entry(key, "WeightBiasQuantization")
                    session = onnxruntime.InferenceSession(
                        file, options, providers=["CPUExecutionProvider"]
                    )
                    return softmax(session.run(None, {"pixels": pixels(image)})[0][0])

                otherwise = None if form == "qoperator" else partial(answer, joined=True)
                record(folder, name, write, answer, photographs, otherwise)

            attempt(name, work)


if __name__ == "__main__":
    main()
