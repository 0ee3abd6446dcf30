"""Turns ONNX into an engine, and re-exports what `service` may use.

Imports `kernels`, never `service`, and works without a GPU or a driver.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels.device.cache_folder import FOLDER as CACHE_FOLDER
    from kernels.device.cache_folder import keep_below, placed
    from kernels.device.gpus import ARCHITECTURES, GPUS
    from kernels.image.decoded import PLACE_BYTES, DecodedImage, Resize, WrittenImage
    from kernels.image.jpeg import Flag, JpegImage, Reason, UnsuitableError, read_jpeg
    from kernels.image.place import Kind, kind_of, kind_of_batch
    from kernels.image.place import write as write_image
    from kernels.installation import how_to_install
    from kernels.problems.interpolation import Interpolation
    from kernels.problems.precision import Precision
    from kernels.tuning.autotune import TOP_CANDIDATES
    from kernels.tuning.store import DEFAULT_STORE as DEFAULT_TUNING
    from models.classifier import Classifier, load_classifier
    from models.description import descriptions_of, files_of
    from models.digits import MODEL_PATH as BUILT_IN_MODEL
    from models.engines.choice import DeviceChoice, all_on_cpu, every_gpu
    from models.engines.compare import tolerance
    from models.engines.engine import (
        Array,
        Batch,
        DeviceKind,
        Engine,
        Image,
        Images,
        Pixels,
        Results,
        Scores,
        TopClasses,
    )
    from models.engines.onnxruntime_engine import WarmUpResult
    from models.engines.open_engine import open_engine, open_engines, try_on_cpu
    from models.engines.original import Original
    from models.engines.timeline import measure_timeline
    from models.errors import (
        DeviceLostError,
        EngineError,
        ModelError,
        ModelFileError,
        PreprocessingError,
        QuantizationError,
        UnsupportedModelError,
    )
    from models.onnx_loader import FileLimits, external_files
    from models.onnx_loader.kept import TRANSLATED
    from models.preprocessing import (
        OF_OWN_NORMALISATION,
        PRESETS,
        ChannelOrder,
        CropMode,
        Layout,
        Preprocessing,
        Rounding,
        each_preset,
        normalised,
    )
    from models.quantization.measure import Goal
    from models.quantization.quantize import (
        MOST_PHOTOGRAPHS,
        Photographs,
        QuantizationReport,
        check_photograph_count,
        quantize,
    )
    from models.readers import files_beside
    from models.reports.plan_report import PlanReport, plan_report
    from models.reports.report import NetworkReport, NodeReport, report
    from models.schedule.timeline import Timeline
    from models.scores import (
        OutputKind,
        classes_of,
        contradiction,
        each_probability,
        meaning_of,
        positive,
        probabilities_of,
        shown_by,
    )
    from models.served import Absent, Inner, Maps, Serving, as_vectors
    from models.tuning.precompile import precompile
    from models.tuning.tune import ProblemReport, TuningReport, tune

_NAMES = {
    "kernels.device.cache_folder": ["FOLDER as CACHE_FOLDER", "keep_below", "placed"],
    "kernels.device.gpus": ["ARCHITECTURES", "GPUS"],
    "kernels.image.decoded": ["PLACE_BYTES", "DecodedImage", "Resize", "WrittenImage"],
    "kernels.image.jpeg": ["Flag", "JpegImage", "Reason", "UnsuitableError", "read_jpeg"],
    "kernels.image.place": ["Kind", "kind_of", "kind_of_batch", "write as write_image"],
    "kernels.installation": ["how_to_install"],
    "kernels.problems.interpolation": ["Interpolation"],
    "kernels.problems.precision": ["Precision"],
    "kernels.tuning.autotune": ["TOP_CANDIDATES"],
    "kernels.tuning.store": ["DEFAULT_STORE as DEFAULT_TUNING"],
    "models.classifier": ["Classifier", "load_classifier"],
    "models.description": ["descriptions_of", "files_of"],
    "models.digits": ["MODEL_PATH as BUILT_IN_MODEL"],
    "models.engines.choice": ["DeviceChoice", "all_on_cpu", "every_gpu"],
    "models.engines.compare": ["tolerance"],
    "models.engines.engine": [
        "Array",
        "Batch",
        "DeviceKind",
        "Engine",
        "Image",
        "Images",
        "Pixels",
        "Results",
        "Scores",
        "TopClasses",
    ],
    "models.engines.onnxruntime_engine": ["WarmUpResult"],
    "models.engines.open_engine": ["open_engine", "open_engines", "try_on_cpu"],
    "models.engines.original": ["Original"],
    "models.engines.timeline": ["measure_timeline"],
    "models.errors": [
        "DeviceLostError",
        "EngineError",
        "ModelError",
        "ModelFileError",
        "PreprocessingError",
        "QuantizationError",
        "UnsupportedModelError",
    ],
    "models.onnx_loader": ["FileLimits", "external_files"],
    "models.onnx_loader.kept": ["TRANSLATED"],
    "models.preprocessing": [
        "OF_OWN_NORMALISATION",
        "PRESETS",
        "ChannelOrder",
        "CropMode",
        "Layout",
        "Preprocessing",
        "Rounding",
        "each_preset",
        "normalised",
    ],
    "models.quantization.measure": ["Goal"],
    "models.quantization.quantize": [
        "MOST_PHOTOGRAPHS",
        "Photographs",
        "QuantizationReport",
        "check_photograph_count",
        "quantize",
    ],
    "models.readers": ["files_beside"],
    "models.reports.plan_report": ["PlanReport", "plan_report"],
    "models.reports.report": ["NetworkReport", "NodeReport", "report"],
    "models.schedule.timeline": ["Timeline"],
    "models.scores": [
        "OutputKind",
        "classes_of",
        "contradiction",
        "each_probability",
        "meaning_of",
        "positive",
        "probabilities_of",
        "shown_by",
    ],
    "models.served": ["Absent", "Inner", "Maps", "Serving", "as_vectors"],
    "models.tuning.precompile": ["precompile"],
    "models.tuning.tune": ["ProblemReport", "TuningReport", "tune"],
}
"""The names of each module, as in an import. A module is imported when one of its names is asked
for: a server needs only a part of them, once another process has read its models."""

_MODULES = {
    name.partition(" as ")[2] or name: (module, name.partition(" as ")[0])
    for module, names in _NAMES.items()
    for name in names
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return one of the names, imported now."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, own = _MODULES[name]
        return getattr(import_module(module), own)


__version__ = "0.1.0"

__all__ = [
    "ARCHITECTURES",
    "BUILT_IN_MODEL",
    "CACHE_FOLDER",
    "DEFAULT_TUNING",
    "GPUS",
    "MOST_PHOTOGRAPHS",
    "OF_OWN_NORMALISATION",
    "PLACE_BYTES",
    "PRESETS",
    "TOP_CANDIDATES",
    "TRANSLATED",
    "Absent",
    "Array",
    "Batch",
    "ChannelOrder",
    "Classifier",
    "CropMode",
    "DecodedImage",
    "DeviceChoice",
    "DeviceKind",
    "DeviceLostError",
    "Engine",
    "EngineError",
    "FileLimits",
    "Flag",
    "Goal",
    "Image",
    "Images",
    "Inner",
    "Interpolation",
    "JpegImage",
    "Kind",
    "Layout",
    "Maps",
    "ModelError",
    "ModelFileError",
    "NetworkReport",
    "NodeReport",
    "Original",
    "OutputKind",
    "Photographs",
    "Pixels",
    "PlanReport",
    "Precision",
    "Preprocessing",
    "PreprocessingError",
    "ProblemReport",
    "QuantizationError",
    "QuantizationReport",
    "Reason",
    "Resize",
    "Results",
    "Rounding",
    "Scores",
    "Serving",
    "Timeline",
    "TopClasses",
    "TuningReport",
    "UnsuitableError",
    "UnsupportedModelError",
    "WarmUpResult",
    "WrittenImage",
    "__version__",
    "all_on_cpu",
    "as_vectors",
    "check_photograph_count",
    "classes_of",
    "contradiction",
    "descriptions_of",
    "each_preset",
    "each_probability",
    "every_gpu",
    "external_files",
    "files_beside",
    "files_of",
    "how_to_install",
    "keep_below",
    "kind_of",
    "kind_of_batch",
    "load_classifier",
    "meaning_of",
    "measure_timeline",
    "normalised",
    "open_engine",
    "open_engines",
    "placed",
    "plan_report",
    "positive",
    "precompile",
    "probabilities_of",
    "quantize",
    "read_jpeg",
    "report",
    "shown_by",
    "tolerance",
    "try_on_cpu",
    "tune",
    "write_image",
]
