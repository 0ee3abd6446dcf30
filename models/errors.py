"""Defines the errors about a model file, its description or its engine.

ModelError
├── ModelFileError          missing, too large, truncated, not ONNX, external data, invalid
├── UnsupportedModelError   valid ONNX that Convoy cannot run; the message lists the reasons
│   ├── NoKernelsError      valid ONNX that Convoy's kernels cannot run; ONNX Runtime may
│   └── NotScoresError      valid ONNX; no output can be scores, or several can
├── QuantizationError       a quantized model would change too many labels
├── PreprocessingError      model.toml, a preset or a flag that is invalid
└── EngineError             a device that is missing, or a run that failed
    ├── NoGpuError          no GPU could be opened
    └── DeviceLostError     a device that takes no more work from this process
"""


class ModelError(Exception):
    """Base class of the errors about model files, their descriptions and engines. A message says
    what is wrong and how to correct it."""


class ModelFileError(ModelError):
    """Raised if the file cannot be read as an ONNX model."""


class UnsupportedModelError(ModelError):
    """Raised if the model is valid but has a property that Convoy does not support."""


class NoKernelsError(UnsupportedModelError):
    """Raised if Convoy has no kernels for some operators of a model. ONNX Runtime may still run the
    model."""


class NotScoresError(UnsupportedModelError):
    """Raised if no output of the model can be a classifier's scores, or if several outputs can
    be."""


class QuantizationError(ModelError):
    """Raised if quantization would change the labels of too many images, or if there are too few
    images to test this."""


class PreprocessingError(ModelError):
    """Raised if the description of a model's pixels is wrong."""


class EngineError(ModelError):
    """Raised if an engine could not be opened, or failed while it ran a batch."""


class NoGpuError(EngineError):
    """Raised if no GPU could be opened."""


class DeviceLostError(EngineError):
    """Raised if a fault made the device unusable in this process. Other processes can still use
    it."""
