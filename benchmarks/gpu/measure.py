"""Measures Convoy and other libraries on the GPU, with the benchmarks of kernels, networks and
serving. A unit (units.py) is one measurement."""

import ctypes
import signal
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

from benchmarks.gpu import carried
from benchmarks.gpu.decoding import measure_decoding
from benchmarks.gpu.units import (
    AT_PRECISIONS,
    DECODING,
    HTTP,
    JPEG,
    JPEG_TO_GPU,
    LAYER,
    MICRO,
    PIXELS,
    SIDES,
    WITH_TF32,
    Unit,
    problems,
)
from benchmarks.gpu.worker import Measure, RefusedError, serve_units
from benchmarks.kernels.baselines_torch import BaselineError, CudaRuntime
from benchmarks.kernels.contest import Effort, Outcome
from benchmarks.kernels.report import CONVOY
from benchmarks.kernels.sides import ConvoySide, baseline
from benchmarks.networks import light
from benchmarks.networks.measure import MOST_DIFFERENCE, RUNS, Make, chosen, measure
from benchmarks.networks.sides import WAYS, ConvoyNetwork, TorchNetwork
from benchmarks.networks.switches import CONVOYS, UNTUNED
from benchmarks.rows import Row, where
from benchmarks.serving.http_client import address_of, closed_loop, post_request
from benchmarks.serving.served import logged
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import Device, DeviceError
from kernels.problems.conv import ConvProblem
from kernels.tuning import micro
from kernels.tuning.autotune import Search
from kernels.tuning.heuristic import heuristic
from kernels.tuning.store import TuningStore

LOAD_S = 5.0

_EFFORT, _MICRO_EFFORT = Effort(), micro.Effort()

DIE_WITH_PARENT = f"import ctypes; ctypes.CDLL(None).prctl(1, {int(signal.SIGKILL)})"


def measurer_of(kind: str, side: str, device: Device, out: Path) -> Measure:
    """Return the function that measures units of this kind. `side` names Convoy or another library.
    Raises BaselineError if the library is missing or unknown."""
    checked_side(side.removesuffix(WITH_TF32))
    store = TuningStore(out / "tuning.json")
    if kind == MICRO:
        return partial(measure_constants, device)
    if kind == DECODING:
        return partial(measure_decoding, device)
    if kind == LAYER:
        return _layers(side, device, store)
    return _requests() if kind == HTTP else _networks(side, device, store)


def checked_side(side: str) -> str:
    """Return `side` if it names Convoy or another library in SIDES. Otherwise raises BaselineError,
    whose message lists SIDES."""
    if side not in SIDES:
        raise BaselineError(f"{side!r} cannot be measured; name one of {', '.join(sorted(SIDES))}")
    return side


def measure_constants(
    device: Device, unit: Unit, effort: micro.Effort = _MICRO_EFFORT
) -> list[Row]:
    """Time the small kernels whose times determine the cost model's constants. Return a row for
    each time."""
    with micro.laboratory(device, effort) as at:
        readings = micro.MEASUREMENTS[unit.subject](at)
    return [
        {
            "reading": reading.name,
            "conditions": dict(reading.conditions),
            "p50_us": round(reading.us, 4),
        }
        for reading in readings
    ]


def _layers(name: str, device: Device, store: TuningStore, effort: Effort = _EFFORT) -> Measure:
    convoy = name == CONVOY
    side = ConvoySide(device, effort, store, Search()) if convoy else baseline(name, device, effort)
    known = problems()

    def layer(unit: Unit) -> list[Row]:
        problem = known[unit.subject].with_batch(unit.n)
        outcome = side.measure(problem)
        if not outcome.winners:
            reasons = "; ".join(f"{name}: {why}" for name, why in outcome.refused.items())
            raise RefusedError(reasons[:1000])  # there may be a hundred reasons
        return rows_of(problem, name, outcome, effort)

    return layer


def rows_of(problem: ConvProblem, side: str, outcome: Outcome, effort: Effort) -> list[Row]:
    """Return one row for each state of the cache (warm, cold), with the time of the fastest
    algorithm. Return no rows if no algorithm could run."""
    return [
        {
            "problem": str(problem),
            "n": problem.n,
            "side": side,
            "cache": cache.value,
            "choice": winner.name,
            "workspace_bytes": winner.workspace_bytes,
            "p20_us": round(winner.timing.p20_us, 3),
            "p50_us": round(winner.timing.p50_us, 3),
            "p80_us": round(winner.timing.p80_us, 3),
            "copies": effort.copies,
            "replays": effort.replays,
            "tried": outcome.tried,
            "refused": len(outcome.refused),
        }
        for cache, winner in outcome.winners.items()
    ]


def _networks(name: str, device: Device, store: TuningStore, runs: int = RUNS) -> Measure:
    runtime = None if name == CONVOY else CudaRuntime(tf32=name.endswith(WITH_TF32))

    def network(unit: Unit) -> list[Row]:
        subject, precision = AT_PRECISIONS[unit.subject]
        model, n = light.network(subject, precision), unit.n
        # If PyTorch is measured, Convoy only computes the expected scores.
        checked_side(unit.side)
        convoy, switch = CONVOYS[unit.side] if runtime is None else (UNTUNED, "")
        tuned = convoy == CONVOY
        choose = chosen(device, model, n, store, Search()) if tuned else heuristic(device)
        ours: Make = partial(ConvoyNetwork, model, device, n, choose)
        makers = {CONVOY: ours, unit.side: ours}
        if switch:
            makers[unit.side] = partial(ConvoyNetwork, model, device, n, choose, switch)
        if runtime is not None:
            makers[unit.side] = lambda: TorchNetwork(runtime, model, n, WAYS[unit.side])
        most = MOST_DIFFERENCE[precision]
        rows = measure(unit.subject, n, makers, light.images_of(model, n), [unit.side], runs, most)
        return [row for side in rows for row in side]

    return network


def _requests(device: str = "cuda", load_s: float = LOAD_S) -> Measure:
    data = carried.data()
    if data is None:
        raise BaselineError(
            "SqueezeNet and the photographs are missing. On a machine with network access, run"
            " `python -m benchmarks.gpu carry`, and then copy the folder .gpu to this checkout"
        )
    program = [*carried.python(), "-c", f"{DIE_WITH_PARENT}; from service.cli import main; main()"]
    image = sorted((data / "images").glob("*.JPEG"))[0].read_bytes()
    model = data / "squeezenet1.1-fp16.onnx"
    options = [str(model), "--preset", "caffe", "--device", device, "--precision", "fp32"]
    options.append("--no-access-log")
    binary = "application/octet-stream", "Inference-Header-Content-Length: 0"
    photograph = post_request("/v1/classify", image, "image/jpeg")
    request_of = {
        JPEG: photograph,
        JPEG_TO_GPU: photograph,
        PIXELS: post_request(f"/v2/models/{model.stem}/infer", bytes(224 * 224 * 3), *binary),
    }

    def requests(unit: Unit) -> list[Row]:
        request = request_of[unit.subject]
        decode = ["--decode", "gpu" if unit.subject == JPEG_TO_GPU else "cpu"]
        with TemporaryFile("w+") as log, logged([*options, *decode], log, program) as (_, url, _):
            address = address_of(url)
            closed_loop(address, request, unit.n, load_s / 4)
            took = sorted(closed_loop(address, request, unit.n, load_s))
        return [
            {
                "sent": unit.subject,
                "connections": unit.n,
                "requests": len(took),
                "requests_per_s": round(len(took) / load_s, 1),
                "p50_ms": round(1e3 * took[len(took) // 2], 3),
                "p99_ms": round(1e3 * took[len(took) * 99 // 100], 3),
            }
        ]

    return requests


def main(kind: str, side: str, out: Path, commit: str) -> None:
    """Measure the units that arrive on standard input. Raises SystemExit with the reason if there
    is no GPU or a library is missing.

    When the process that started this process ends, this process is killed too, so that it does not
    occupy the GPU any longer.
    """
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    try:
        device = CudaDevice()
        measurer = measurer_of(kind, side, device, out)
    except (DeviceError, BaselineError) as error:
        raise SystemExit(str(error)) from error
    serve_units(measurer, where(device, commit), device.synchronize)
