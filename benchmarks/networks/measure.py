"""Measures whole networks in strict float32 with Convoy and PyTorch, for README, "Measured on a
GPU".

The networks are VGG-19, ResNet-50, GoogLeNet, SqueezeNet and C3D with seeded weights. PyTorch runs
the same rewritten graph with channels last and TF32 off: node by node with cudnn.benchmark, in a
CUDA graph, and with torch.compile (max-autotune). Scores are compared before anything is timed.
Each side has two times:

    device       from pixels on the device to scores on the device, with runs queued one after
                 another; Convoy's time includes copies from and to pinned memory
    end to end   from the host's pixels to the host's scores, one request at a time

`python -m benchmarks.gpu run` measures the networks. It also measures Convoy with one of its
techniques disabled at a time (switches.py).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from benchmarks.kernels.report import CONVOY
from benchmarks.networks.sides import NetworkSide, warm_up
from benchmarks.rows import Row
from kernels.device.device import Device
from kernels.problems.precision import Precision
from kernels.tuning.autotune import Search, autotune
from kernels.tuning.heuristic import heuristic
from kernels.tuning.search import conditions_of, finder, tuned
from kernels.tuning.store import TuningStore
from kernels.tuning.timing import Timing
from models.classifier import Classifier
from models.engines.engine import Images, Scores
from models.lowering import Choose
from models.tuning.measured import conv_problems

RUNS = 200

MOST_DIFFERENCE: Mapping[Precision, float] = {
    **dict.fromkeys(Precision, 0.3),
    Precision.FP32: 1e-3,
}
"""The largest difference of a score from Convoy's, relative to the image's largest score. With
random weights and less precision than float32, agreement only shows that both sides ran the same
network."""

Make = Callable[[], NetworkSide]


class DifferentScoresError(Exception):
    """Raised when the scores of a measured library differ too much from Convoy's."""


def chosen(
    device: Device, network: Classifier, n: int, store: TuningStore, search: Search
) -> Choose:
    """Tune the network's convolutions for N = n, and return a function that returns the fastest
    choice for a convolution. Convolutions that the store contains are not measured again."""
    problems = list(conv_problems(network.rewritten.graph, [n]))
    autotune(device, problems, store, search, progress=lambda *_: None)
    return tuned(finder(store.read(), conditions_of(device)), heuristic(device))


def times_of(side: NetworkSide, images: Images, runs: int) -> dict[str, Timing]:
    """Run a network repeatedly, and return its times for the two metrics "device" and "end to
    end"."""
    warm_up(lambda: side.run(images))
    end_to_end = []
    for _ in range(runs):
        begin = time.perf_counter()
        side.run(images)
        end_to_end.append(1e6 * (time.perf_counter() - begin))
    return {"device": Timing.of(side.queued_us(runs)), "end to end": Timing.of(end_to_end)}


def check(
    name: str,
    scores: Scores,
    expected: Scores,
    most_difference: float = MOST_DIFFERENCE[Precision.FP32],
) -> None:
    """Raise DifferentScoresError if the scores of an image differ too much from the expected
    scores."""
    difference = np.abs(scores - expected).max(axis=1) / np.abs(expected).max(axis=1)
    if not difference.max() <= most_difference:  # NaN counts as a difference
        raise DifferentScoresError(
            f"the scores of {name} must equal Convoy's; they differ by {difference.max():.1e}"
        )


def measure(
    network: str,
    n: int,
    makers: Mapping[str, Make],
    images: Images,
    sides: Sequence[str],
    runs: int,
    most_difference: float = MOST_DIFFERENCE[Precision.FP32],
) -> Iterator[list[Row]]:
    """Time a network with each library in `sides`, and yield the rows of each library. `makers`
    maps a library's name to a function that prepares the network. Raises DifferentScoresError if
    the scores of a library differ too much from Convoy's."""
    reference = makers[CONVOY]()
    expected = reference.run(images).scores
    for name in sides:
        side = reference if makers[name] is makers[CONVOY] else makers[name]()
        check(name, side.run(images).scores, expected, most_difference)
        times = times_of(side, images, runs)
        if side is not reference:
            side.close()
        yield [
            {
                "network": network,
                "n": n,
                "side": name,
                "metric": metric,
                "p20_us": round(timing.p20_us, 2),
                "p50_us": round(timing.p50_us, 2),
                "p80_us": round(timing.p80_us, 2),
                "runs": runs,
            }
            for metric, timing in times.items()
        ]
    reference.close()
