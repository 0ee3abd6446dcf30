"""Defines the errors in a model file or in its description.

ModelError
├── ModelFileError          missing, too large, truncated, not ONNX, external data, invalid
├── UnsupportedModelError   valid ONNX that Convoy cannot run, with everything that is missing
│   ├── NoKernelsError      valid ONNX that Convoy's kernels cannot run; ONNX Runtime may
│   └── NotScoresError      valid ONNX of which no output, or more than one, may be scores
├── QuantizationError       a quantized model would change too many labels
├── PreprocessingError      model.toml, a preset or a flag that is invalid
└── EngineError             a device that is missing, or a run that failed
    ├── NoGpuError          no GPU could be opened
    └── DeviceLostError     a device that takes no more work from this process
"""


class ModelError(Exception):
    """Is the base of all these errors, whose messages say what is wrong and what would be right."""


class ModelFileError(ModelError):
    """Says that the file cannot be read as an ONNX model."""


class UnsupportedModelError(ModelError):
    """Says that the model is valid but uses something that Convoy does not run."""


class NoKernelsError(UnsupportedModelError):
    """Says that Convoy has no kernels for some operators, though ONNX Runtime may run the model."""


class NotScoresError(UnsupportedModelError):
    """Says that no output of the model is a classifier's scores, or that several may be."""


class QuantizationError(ModelError):
    """Says that a quantized model would change too many labels, or that too few images show it does
    not."""


class PreprocessingError(ModelError):
    """Says that the description of a model's pixels is wrong."""


class EngineError(ModelError):
    """Says that the engine could not be opened, or failed while it ran a batch."""


class NoGpuError(EngineError):
    """Says that no GPU could be opened."""


class DeviceLostError(EngineError):
    """Says that a fault made the device unusable in this process; another process can use it."""
