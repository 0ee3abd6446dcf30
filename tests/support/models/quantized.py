"""Quantizes models with onnxruntime.quantization."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from typing_extensions import override

from models.engines.saturation import pairs_saturate
from models.engines.unsigned import on_integers


class Images(CalibrationDataReader):  # type: ignore[misc]  # the library is untyped
    """Gives the calibration one image after another."""

    def __init__(self, name: str, images: NDArray[Any]) -> None:
        self._rows = iter([{name: images[i : i + 1]} for i in range(len(images))])

    @override
    def get_next(self) -> dict[str, Any] | None:
        return next(self._rows, None)


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress the library's advice, within this block, to prepare a model first."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def quantized(
    path: Path,
    to: Path,
    images: NDArray[np.float32],
    form: QuantFormat = QuantFormat.QDQ,
    *,
    per_channel: bool = True,
    activations: QuantType = QuantType.QUInt8,
    weights: QuantType = QuantType.QInt8,
) -> Path:
    """Quantize the model in `path`, write the result to `to`, and return `to`."""
    (value,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).get_inputs()
    with quietly():
        quantize_static(
            path,
            to,
            Images(value.name, images),
            quant_format=form,
            per_channel=per_channel,
            activation_type=activations,
            weight_type=weights,
        )
    return to


def run_on_integers(model: ModelProto | Path, images: NDArray[Any]) -> NDArray[np.float32]:
    """Return the scores of each image alone, computed with ONNX Runtime's integer kernels.

    The kernels' sums are exact on every CPU. On some CPUs, sums of pairs of products would
    saturate, and so filters are converted to uint8. For a model in memory, Convoy converts the
    filters. For a file, an option of ONNX Runtime converts them. ONNX Runtime cannot open models
    with shared zero points with this option.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if isinstance(model, Path):
        options.add_session_config_entry("session.x64quantprecision", "1")
    else:
        model = on_integers(model, pairs_saturate=pairs_saturate())
    session = onnxruntime.InferenceSession(
        model if isinstance(model, Path) else model.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    (value,) = session.get_inputs()
    rows: Sequence[Any] = [
        session.run(None, {value.name: images[i : i + 1]})[0] for i in range(len(images))
    ]
    return np.concatenate(rows).astype(np.float32)


def run_node_by_node(model: ModelProto, images: NDArray[Any]) -> NDArray[np.float32]:
    """Return the first output for a batch. ONNX Runtime runs the model without fusions."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (value,) = session.get_inputs()
    first, *_ = session.run(None, {value.name: images})
    return np.asarray(first, np.float32)
