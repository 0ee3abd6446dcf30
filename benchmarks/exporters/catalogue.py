"""Lists the exporters with their pinned versions and the scripts that run them."""

from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"

EXPECTED = "expected.json"
"""The file in a model's folder with the answers of the exporter's pipeline. scripts/recorded.py
writes it."""

OTHERWISE = "otherwise.json"
"""The file with a quantized model's answers after the same runtime has run it in a second way."""

_TORCH = ("torch==2.15.0", "onnx==1.23.2", "onnxscript==0.7.2", "onnxruntime==1.32.0")
_PILLOW = "pillow==13.0.0"


@dataclass(frozen=True)
class Exporter:
    """Names the script that runs an exporter, and the packages to install. The first package is the
    exporter itself."""

    name: str
    requirements: tuple[str, ...]
    script: str
    arguments: tuple[str, ...] = ()


EXPORTERS = (
    Exporter("PyTorch", (*_TORCH, _PILLOW), "small_networks.py"),
    Exporter("torchvision", ("torchvision==0.29.2", *_TORCH, _PILLOW), "torchvision_models.py"),
    Exporter("timm", ("timm==1.0.31", *_TORCH, _PILLOW), "timm_models.py"),
    Exporter(
        "transformers",
        ("transformers==5.24.0", "torchvision==0.29.2", *_TORCH, _PILLOW),
        "transformers_models.py",
    ),
    Exporter(
        "optimum",
        ("optimum-onnx==0.1.0", "transformers==4.57.6", "torchvision==0.29.2", *_TORCH, _PILLOW),
        "optimum_models.py",
    ),
    Exporter(
        "Ultralytics",
        ("ultralytics==8.4.190", "onnxslim==0.1.98", *_TORCH, _PILLOW),
        "ultralytics_models.py",
    ),
    Exporter(
        "Keras and tf2onnx",
        ("keras==3.15.1", "tensorflow-cpu==2.21.0", "tf2onnx==1.17.0", "onnx==1.23.2", _PILLOW),
        "keras_models.py",
        ("tensorflow",),
    ),
    Exporter(
        "Keras on PyTorch", ("keras==3.15.1", *_TORCH, _PILLOW), "keras_models.py", ("torch",)
    ),
    Exporter(
        "Paddle",
        ("paddle2onnx==2.1.0", "paddlepaddle==3.3.1", "packaging", "setuptools", _PILLOW),
        "paddle_models.py",
    ),
    Exporter(
        "scikit-learn", ("skl2onnx==1.20.0", "scikit-learn==1.9.1", _PILLOW), "sklearn_models.py"
    ),
    Exporter("forms of Custom Vision, ML.NET and AutoGluon", (*_TORCH, _PILLOW), "forms.py"),
    Exporter(
        "ONNX Runtime's quantizer",
        ("onnxruntime==1.32.0", "onnx==1.23.2", "sympy==1.14.0", _PILLOW),
        "quantized_models.py",
        ("onnxruntime",),
    ),
    Exporter("NNCF", ("nncf==3.4.0", *_TORCH, _PILLOW), "quantized_models.py", ("nncf",)),
    Exporter(
        "Model Optimizer",
        ("nvidia-modelopt[onnx]==0.47.0", "torch==2.15.0", "onnxruntime==1.32.0", _PILLOW),
        "quantized_models.py",
        ("modelopt",),
    ),
)
"""The exporters in the order in which they run, since quantizers read the files of PyTorch and
torchvision."""
