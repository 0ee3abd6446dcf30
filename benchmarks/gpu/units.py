"""Lists the units to measure on a GPU, the most valuable first, and selects units that fit into a
given time.

A unit is one measurement: the time of Convoy or of another library (the side) for one problem. It
is measured without interruption, stored as one line of JSON, and never repeated.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.kernels.report import CONVOY
from benchmarks.kernels.suites import MEASURED, NAMED, SUITES
from benchmarks.networks.recorded import RECORDED
from benchmarks.networks.switches import CONVOYS, SWITCHES, UNTUNED, switched
from benchmarks.rows import Row
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.tuning.micro import MEASUREMENTS

MICRO, LAYER, NETWORK, HTTP, DECODING = "micro", "layer", "network", "http", "decoding"

WITH_TF32 = " with tf32"
"""The suffix of a side whose worker is started with TF32."""

START_S = 10.0
"""The seconds that a worker needs to start, with CUDA and, if needed, PyTorch."""

_SECONDS = {
    (MICRO, "convoy"): 2.0,
    (LAYER, "convoy"): 4.0,
    (LAYER, "torch"): 2.0,
    (LAYER, "im2col"): 2.0,
    (LAYER, "cudnn"): 40.0,
    (NETWORK, "torch eager"): 15.0,
    (NETWORK, "torch graph"): 3.5,
    (NETWORK, "torch.compile"): 120.0,
    (HTTP, "convoy"): 9.0,
    (DECODING, "convoy"): 2.0,
    **{(NETWORK, side): 2.3 if side.startswith(UNTUNED) else 15.0 for side in CONVOYS},
    (NETWORK, CONVOY): 30.0,
}
"""Guesses of the seconds that a unit takes, by kind and side. The median of recorded units replaces
a guess."""

SIDES = frozenset(side for _, side in _SECONDS)
"""The names of all sides."""

SENT = JPEG, JPEG_TO_GPU, PIXELS = "JPEG", "JPEG decoded by the GPU", "V2 pixels"
"""The kinds of requests to SqueezeNet: a photograph that a CPU decodes, a photograph that a GPU
decodes, or UINT8 pixels of the model's size."""

SAMPLINGS = {"4:2:0": (2, 2), "4:4:4": (1, 1)}
"""The samplings of the decoded photographs: luma samples per chroma sample, across and down."""


_SQUEEZENET, _OTHERS = ("SqueezeNet",), ("ResNet-50", "GoogLeNet", "VGG-19")
_NETWORKS = (*_SQUEEZENET, *_OTHERS)
_VIT = ("ViT-S/16",)
_ATTENTION = (*_VIT, "DeiT-Ti/16", "Swin-T", "YOLO11n-cls")
_RECORDED = tuple(RECORDED)


def at_precision(network: str, precision: Precision) -> str:
    """Return the name of a network at a precision, such as "ResNet-50 fp16"."""
    return network if precision is Precision.FP32 else f"{network} {precision.value}"


AT_PRECISIONS: Mapping[str, tuple[str, Precision]] = {
    at_precision(network, precision): (network, precision)
    for network in (*_NETWORKS, *_ATTENTION, *_RECORDED)
    for precision in Precision
}
"""Every subject of NETWORK, with its network and its precision."""

_TIMED = Precision.FP32, Precision.TF32, Precision.FP16, Precision.INT8
_MAIN = "SqueezeNet", "ResNet-50"
_UNTUNED = (UNTUNED, switched(SWITCHES[0], UNTUNED))


def _at(networks: Iterable[str], precisions: Iterable[Precision]) -> tuple[str, ...]:
    return tuple(
        at_precision(network, precision) for precision in precisions for network in networks
    )


_TORCH = ("torch eager", "torch graph")
_SWITCHED = tuple(map(switched, SWITCHES))

# Each row: the kind, the groups, the values of N (for HTTP, of connections), and the sides.
_ORDER: tuple[tuple[str, tuple[str, ...], tuple[int, ...], tuple[str, ...]], ...] = (
    (MICRO, tuple(MEASUREMENTS), (1,), ("convoy",)),
    (NETWORK, _at(_MAIN, _TIMED), (1, 8), _UNTUNED),
    # TF32 comes last, because PyTorch has a separate worker for it.
    (NETWORK, _at((*_MAIN, *_VIT), (Precision.FP32, Precision.FP16)), (1, 8), _TORCH[1:]),
    (NETWORK, _at(_MAIN, (Precision.TF32,)), (1, 8), _TORCH[1:]),
    (LAYER, ("named",), (1, 8, 32), ("convoy", "torch")),
    (LAYER, ("vgg-e",), (1, 8), ("convoy", "torch", "im2col")),
    (NETWORK, _SQUEEZENET, (1, 8), ("convoy", *_TORCH)),
    (DECODING, tuple(SAMPLINGS), (1, 8), ("convoy",)),
    (HTTP, SENT, (1, 8, 32), ("convoy",)),
    (NETWORK, ("ResNet-50",), (1, 8), ("convoy", *_TORCH)),
    (LAYER, ("c3d",), (1, 8), ("convoy", "torch")),
    (LAYER, ("vgg-e",), (64, 16), ("convoy", "torch")),
    (LAYER, ("vgg-e fp16",), (1, 8, 64), ("convoy", "torch")),
    (LAYER, ("cuconv",), (1,), ("convoy", "torch")),
    (NETWORK, _at(_ATTENTION, (Precision.FP32, Precision.FP16)), (1, 8), (UNTUNED, *_TORCH[1:])),
    (NETWORK, ("GoogLeNet", "VGG-19"), (1, 8), ("convoy", *_TORCH)),
    (NETWORK, _at(_RECORDED, (Precision.FP16,)), (1, 8), (UNTUNED, *_TORCH[1:])),
    (NETWORK, ("ResNet-50", "GoogLeNet"), (1, 8), _SWITCHED),
    (LAYER, ("vgg-e", "c3d"), (1, 8), ("cudnn",)),
    (NETWORK, (*_NETWORKS, *_at(_ATTENTION, (Precision.FP16,))), (1, 8), ("torch.compile",)),
    (LAYER, ("cuconv",), (8,), ("convoy", "torch")),
    (LAYER, ("cuconv",), (1, 8), ("im2col",)),
    (NETWORK, _NETWORKS, (2, 4), ("convoy", *_TORCH, "torch.compile")),
    (NETWORK, _NETWORKS, (1, 2, 4, 8), _SWITCHED),
    (LAYER, ("cuconv",), (1, 8), ("cudnn",)),
    (LAYER, tuple(SUITES), (2, 4), ("convoy", "torch", "cudnn")),
    (LAYER, ("vgg-e", "vgg-e fp16"), (16, 2, 4, 32), ("convoy", "torch")),
    (LAYER, ("vgg-e",), (16, 32, 64), ("cudnn",)),
    (LAYER, ("c3d",), (32,), ("cudnn",)),
    (LAYER, ("cuconv",), (16, 32, 64, 128, 256), ("convoy", "torch", "cudnn")),
    (NETWORK, _at(_RECORDED, (Precision.FP16,)), (1, 8), ("torch.compile",)),
)


@dataclass(frozen=True, slots=True)
class Unit:
    """Names one measurement by its kind, its subject, N, and the measured library (the side). The
    tables of this module list the possible values of each field.

    `subject` is a problem as text, or a name in MEASUREMENTS, AT_PRECISIONS, SENT or SAMPLINGS.
    """

    kind: str
    subject: str
    n: int
    side: str

    def __str__(self) -> str:
        return f"{self.kind} {self.subject} N{self.n} {self.side}"

    @property
    def worker(self) -> tuple[str, str]:
        """Return the kind and side for which a worker process is started. One worker measures
        Convoy in all of its settings. PyTorch with TF32 has a separate worker."""
        if self.kind == NETWORK and self.side in CONVOYS:
            return self.kind, CONVOY
        if self.kind == NETWORK and AT_PRECISIONS[self.subject][1] is Precision.TF32:
            return self.kind, self.side + WITH_TF32
        return self.kind, self.side


def problems() -> Mapping[str, ConvProblem]:
    """Return the problems of all suites for N = 1, by their text."""
    return {str(layer.problem): layer.problem for suite in MEASURED.values() for layer in suite}


def _subjects(kind: str, group: str, n: int) -> list[str]:
    """Return the subjects of a group for one N. If layers are measured, these are the layers of the
    suite `group`, or the layers of NAMED if `group` is "named". Otherwise, `group` is the only
    subject."""
    if kind != LAYER:
        return [group]
    named = (each.layer for each in NAMED if each.n == n)
    return [str(layer.problem) for layer in (named if group == "named" else MEASURED[group])]


def units() -> list[Unit]:
    """Return all units, each once, in the order in which they are measured."""
    found = []
    for kind, groups, batches, sides in _ORDER:
        for group in groups:
            # Sides follow one another, because a worker measures one side and takes long to start.
            found += [
                Unit(kind, subject, n, side)
                for side in sides
                for n in batches
                for subject in _subjects(kind, group, n)
            ]
    return list(dict.fromkeys(found))


def missing(
    every: Iterable[Unit], lines: Iterable[Row], commit: str, device: str = ""
) -> list[Unit]:
    """Return the units that no line records for this commit. If a device is given, lines from other
    devices do not count."""
    there = {
        line["unit"]
        for line in lines
        if line["commit"] == commit and (not device or line["device"] == device)
    }
    return [unit for unit in every if str(unit) not in there]


def seconds_of(lines: Sequence[Row]) -> dict[tuple[str, str], float]:
    """Return the expected seconds per unit, by kind and side. This is the median of the recorded
    units or, if there are none, the guess in _SECONDS."""
    took: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        if line["outcome"] == "measured":
            took.setdefault((line["unit"].split()[0], line["side"]), []).append(line["seconds"])
    return {**_SECONDS, **{key: median(values) for key, values in took.items()}}


def packed(
    todo: Iterable[Unit], seconds: float, takes: Mapping[tuple[str, str], float]
) -> list[Unit]:
    """Return the units of `todo` that can be measured within `seconds`, in order. A unit that takes
    longer than the remaining time is skipped."""
    chosen: list[Unit] = []
    left, worker = seconds, None
    for unit in todo:
        cost = takes[unit.kind, unit.side] + (START_S if unit.worker != worker else 0)
        if cost <= left:
            chosen.append(unit)
            left, worker = left - cost, unit.worker
    return chosen


def limit_s(unit: Unit, takes: Mapping[tuple[str, str], float]) -> float:
    """Return the seconds after which the measurement of a unit counts as hung."""
    return 3 * (takes[unit.kind, unit.side] + START_S)
