"""Reads measurements of a network's convolutions, and chooses the fastest algorithms."""

import logging
import re
from collections.abc import Iterable
from pathlib import Path

from kernels.device.cache_folder import placed
from kernels.device.device import Device, DeviceError
from kernels.problems.conv import ConvProblem
from kernels.tuning.heuristic import heuristic
from kernels.tuning.search import Find, conditions_of, finder, tuned
from kernels.tuning.store import DEFAULT_STORE, Measurements, TuningStore, TuningStoreError
from models.errors import EngineError
from models.graph import Conv, Graph
from models.lowering import Choose

_log = logging.getLogger("convoy")


def conv_problems(graph: Graph, batches: Iterable[int]) -> dict[ConvProblem, list[str]]:
    """Return the convolutions of a rewritten graph at each batch size, with the names of the nodes
    that compute them.

    Equal convolutions occur once. The result is sorted by layer, then by batch size.
    """
    layers: dict[ConvProblem, list[str]] = {}
    for node in graph.nodes:
        if isinstance(node, Conv):
            layers.setdefault(node.problem.with_batch(1), []).append(node.name)
    batches = tuple(batches)
    return {layer.with_batch(n): names for layer, names in layers.items() for n in batches}


def read_measurements(tuning: Path | None) -> Measurements:
    """Return the measurements in a file, or in the default file if `tuning` is None.

    The default file may be missing. Raises EngineError if a named file is missing or invalid.
    """
    if tuning is not None and not placed(tuning).exists():
        raise EngineError(f"there are no measurements at {tuning}; run `convoy tune` to make them")
    try:
        return TuningStore(tuning or DEFAULT_STORE).read()
    except TuningStoreError as error:
        raise EngineError(str(error)) from error


def find_on(gpu: str, tuning: Path) -> Find:
    """Return a function that finds the fastest measured algorithm for a convolution on a GPU. `gpu`
    is the GPU's short name, such as "H200".

    If the file has several sets of measurements of that GPU, for example with different drivers,
    the latest set is used. Raises EngineError if there is none, or if `read_measurements` raises
    it.
    """
    measurements = read_measurements(tuning)
    known = dict.fromkeys(key.conditions for key in measurements)
    there = [entry for entry in known if re.search(rf"\b{re.escape(gpu)}\b", entry.device)]
    if not there:
        devices = ", ".join(dict.fromkeys(entry.device for entry in known)) or "no device"
        raise EngineError(
            f"{tuning} has measurements on {devices}, but not on {gpu};"
            " run `convoy tune` on this GPU"
        )
    return finder(measurements, there[-1])


def choose_for(device: Device, graph: Graph, max_batch: int, tuning: Path | None) -> Choose:
    """Return a function that chooses the fastest algorithm for a convolution on this device.

    The choice uses the measured times of the convolution, or estimated times if it was not
    measured. Nothing is measured here. Logs how many choices use measured times. Raises EngineError
    if the device has no compiler, or if `read_measurements` raises it.
    """
    try:
        conditions = conditions_of(device)
    except DeviceError as error:
        raise EngineError(str(error)) from error
    find = finder(read_measurements(tuning), conditions)
    problems = conv_problems(graph, range(1, max_batch + 1))
    total = sum(map(len, problems.values()))
    known = sum(len(names) for problem, names in problems.items() if find(problem))
    _log.info(
        "%d of %d convolutions for batch sizes 1 to %d use measured algorithms%s",
        known,
        total,
        max_batch,
        "; the others use estimates until `convoy tune` measures them" if known < total else "",
    )
    return tuned(find, heuristic(device))
