"""Loads ONNX image classifiers, and opens engines that run them. Re-exports the names that
`service` may use. The package imports `kernels` but not `service`. It works without a GPU or a
driver."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
from kernels.tuning.store import DEFAULT_STORE as DEFAULT_TUNING

if TYPE_CHECKING:
    from kernels.tuning.autotune import TOP_CANDIDATES
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
    from models.engines.measured_timeline import measure_timeline
    from models.engines.onnxruntime_engine import WarmUpResult, elsewhere
    from models.engines.open_engine import open_engine, open_engines, try_on_cpu
    from models.engines.original import Original
    from models.errors import (
        DeviceLostError,
        EngineError,
        ModelError,
        ModelFileError,
        PreprocessingError,
        QuantizationError,
        UnsupportedModelError,
    )
    from models.first_bytes import Signature, name_of
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
    from models.varints import varint

_NAMES = {
    "classifier": ["Classifier", "load_classifier"],
    "description": ["descriptions_of", "files_of"],
    "digits": ["MODEL_PATH as BUILT_IN_MODEL"],
    "engines.choice": ["DeviceChoice", "all_on_cpu", "every_gpu"],
    "engines.compare": ["tolerance"],
    "engines.engine": [
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
    "engines.onnxruntime_engine": ["WarmUpResult", "elsewhere"],
    "engines.open_engine": ["open_engine", "open_engines", "try_on_cpu"],
    "engines.original": ["Original"],
    "engines.measured_timeline": ["measure_timeline"],
    "errors": [
        "DeviceLostError",
        "EngineError",
        "ModelError",
        "ModelFileError",
        "PreprocessingError",
        "QuantizationError",
        "UnsupportedModelError",
    ],
    "first_bytes": ["Signature", "name_of"],
    "onnx_loader": ["FileLimits", "external_files"],
    "onnx_loader.kept": ["TRANSLATED"],
    "preprocessing": [
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
    "quantization.measure": ["Goal"],
    "quantization.quantize": [
        "MOST_PHOTOGRAPHS",
        "Photographs",
        "QuantizationReport",
        "check_photograph_count",
        "quantize",
    ],
    "readers": ["files_beside"],
    "reports.plan_report": ["PlanReport", "plan_report"],
    "reports.report": ["NetworkReport", "NodeReport", "report"],
    "schedule.timeline": ["Timeline"],
    "scores": [
        "OutputKind",
        "classes_of",
        "contradiction",
        "each_probability",
        "meaning_of",
        "positive",
        "probabilities_of",
        "shown_by",
    ],
    "served": ["Absent", "Inner", "Maps", "Serving", "as_vectors"],
    "tuning.precompile": ["precompile"],
    "tuning.tune": ["TOP_CANDIDATES", "ProblemReport", "TuningReport", "tune"],
    "varints": ["varint"],
}
"""The public names of each module, written as in an import statement. A module is imported when one
of its names is first used, because a server needs few of them once its models are read."""

_MODULES = {
    name.partition(" as ")[2] or name: (module, name.partition(" as ")[0])
    for module, names in _NAMES.items()
    for name in names
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import the public name `name` on first use, and return it."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, own = _MODULES[name]
        return getattr(import_module(f"{__name__}.{module}"), own)


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
    "Signature",
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
    "elsewhere",
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
    "name_of",
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
    "varint",
    "write_image",
]
