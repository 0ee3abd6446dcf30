"""Errors in a model file or its description.

ModelError
├── ModelFileError          missing, too large, truncated, not ONNX, external data, invalid
├── UnsupportedModelError   valid ONNX that Convoy cannot run, with everything that is missing
│   └── NoKernelsError      valid ONNX that Convoy's kernels cannot run; ONNX Runtime may
├── PreprocessingError      model.toml, a preset or a flag that is invalid
└── EngineError             a device that is missing, or a run that failed
    └── DeviceLostError     a device that takes no more work from this process
"""


class ModelError(Exception):
    """Base class; the message names what is wrong and what would be right."""


class ModelFileError(ModelError):
    """The file cannot be read as an ONNX model."""


class UnsupportedModelError(ModelError):
    """The model is valid but uses something Convoy does not run."""


class NoKernelsError(UnsupportedModelError):
    """The model uses operators that Convoy has no kernels for; ONNX Runtime may run it."""


class PreprocessingError(ModelError):
    """The description of the pixels that the model expects is wrong."""


class EngineError(ModelError):
    """The engine could not be opened, or failed while it ran a batch."""


class DeviceLostError(EngineError):
    """A fault that CUDA does not forget: only another process can use the device again."""
