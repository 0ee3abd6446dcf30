"""Compiling a model's kernels ahead of time, on a machine that needs no GPU."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kernels.compile import DEFAULT_CACHE, compile_all
from kernels.device import DeviceError, Instantiation
from kernels.heuristic import Facts, heuristic
from models.classifier import Classifier
from models.errors import EngineError
from models.plan import build_plan
from models.rewrite import rewrite

MULTIPROCESSORS: Mapping[str, tuple[int, ...]] = {
    "75": (40, 72),  # T4; Quadro RTX 8000
    "80": (56, 108),  # A30; A100
    "86": (60, 84),  # A10 has 72; A16, A40
    "89": (58, 128, 142),  # L4; RTX 4090; L40
    "90a": (114, 132),  # H100 PCIe; H100 SXM, H200
    "100": (148,),  # B200
    "120": (170, 188),  # RTX 5090; RTX PRO 6000
}
"""Architectures and the sizes of GPUs that have them: what is chosen depends on both. A GPU of
another size may want a kernel that is not among these, and compiles it when it starts."""


def precompile(
    classifier: Classifier,
    architectures: Sequence[str],
    *,
    max_batch: int,
    cache: Path = DEFAULT_CACHE,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Fill the cache with the kernels for N = 1..max_batch; how many there are.

    `progress` hears (done, total). EngineError: an unknown architecture, no compiler.
    """
    if unknown := sorted(set(architectures) - MULTIPROCESSORS.keys()):
        raise EngineError(
            f"unknown architecture {', '.join(unknown)}; there are {', '.join(MULTIPROCESSORS)}"
        )
    graph = rewrite(classifier.network.graph).graph
    wanted: dict[Instantiation, None] = {}
    for size in {size for arch in architectures for size in MULTIPROCESSORS[arch]}:
        choose = heuristic(Facts(size))
        for n in range(1, max_batch + 1):
            plan = build_plan(graph, classifier.preprocessing, n, choose)
            wanted |= dict.fromkeys(step.launch.instantiation for step in plan.steps)
    try:
        compile_all(wanted, architectures, cache, progress)
    except DeviceError as error:
        raise EngineError(str(error)) from error
    return len(wanted) * len(architectures)
