"""Opens ONNX Runtime sessions on the CPU, and names the inputs of served models.

This module does not import ONNX. A server does not need ONNX if another process has read the
models.
"""

import os

# ONNX Runtime's Linux wheels enable telemetry when they are imported: they write an identifier into
# the home directory and send it. They read this variable, which disables telemetry, only then.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # noqa: TID251  set, not read

import onnxruntime as ort

PIXELS = "convoy/pixels"  # uint8, N×H×W×C
TENSORS = "convoy/tensors"  # float32, M×C×H×W or M×H×W×C, as the model takes them

# Operators as a file has them, each with its field's number and its length.
_PAD, _MAX_POOL = b'"\x03Pad', b'"\x07MaxPool'
_DEQUANTIZE = b'"\x10DequantizeLinear'


def open_session(model: bytes, threads: int, *, exact: bool = False) -> ort.InferenceSession:
    """Return a session on the CPU with `threads` threads; 0 lets ONNX Runtime choose their
    number."""
    options = session_options(model, threads, exact=exact)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def session_options(model: bytes, threads: int, *, exact: bool = False) -> ort.SessionOptions:
    """Return the options of a CPU session for a model.

    An `exact` session runs without graph optimisations, so that quantized layers are computed in
    float. Integer kernels might overflow on processors without an instruction for sums of 8-bit
    products.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised in any case
    # Threads that spin between runs would take cores from decoding.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if exact:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    disabled = []
    if _PAD in model and _MAX_POOL in model:
        # This optimisation ignores the zeros around an image in a maximum. The result is wrong if
        # all other numbers of a window are below 0, as in Keras' ResNet50V2.
        disabled.append("Pad_Fusion")
    if _DEQUANTIZE in model:
        # This optimisation quantizes a filter that is in float between quantizers, with one scale
        # for the whole filter.
        disabled.append("WeightBiasQuantization")
        # This optimisation changes the type of zero points from int8 to uint8, but not the type in
        # a QuantizeLinear that another optimisation has added. `on_integers` changes both.
        disabled.append("QDQS8ToU8Transformer")
        # This optimisation rounds once where a file rounds to two scales in turn.
        disabled.append("DoubleQDQPairsRemover")
    if disabled:
        key = "optimization.disable_specified_optimizers"
        options.add_session_config_entry(key, ";".join(disabled))
    return options
