"""Measuring a network's convolutions, and running, showing and compiling the results."""

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cusim.device import CusimDevice
from kernels.convolution.algorithms import choices
from kernels.convolution.direct import DirectConv
from kernels.convolution.gemm import GemmConv
from kernels.convolution.tensor_gemm import TensorConv
from kernels.device.compile import compile_kernel
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import DeviceError, FaultError, Instantiation, Kernel
from kernels.device.gpus import H200
from kernels.device.nvrtc import CompilerNotFoundError
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import heuristic
from kernels.tuning.search import conditions_of, instantiations, keys
from kernels.tuning.store import Conditions, Outcome, Times, TuningStore
from kernels.tuning.timing import Copies, Timing
from models import (
    GPUS,
    DeviceKind,
    EngineError,
    open_engine,
    plan_report,
    precompile,
    tune,
)
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.engine import unproved
from models.engines.tolerance import relative_error
from models.tuning.measured import conv_problems
from tests.support.models.engines import (
    classifier_of,
    network_tolerance,
    pixels,
    reference_scores,
)
from tests.support.models.graphs import GraphBuilder

NODES = ("conv_first", "conv_second", "conv_third")
H200_HERE = Conditions("NVIDIA H200", "90a", "CUDA 13.0", "NVRTC 13.0")


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = CusimDevice()
    yield device
    device.close()


@pytest.fixture(autouse=True)
def gpu(device: CusimDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the simulator in place of a GPU, and hide the user's own measurements."""
    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", lambda *_: device)
    monkeypatch.setattr("models.tuning.measured.DEFAULT_STORE", Path("no/such/tuning.json"))
    # Few algorithms, whatever else there is: each takes time to compile and to simulate.
    monkeypatch.setattr("kernels.convolution.algorithms.ALGORITHMS", (DirectConv(), GemmConv()))


@pytest.fixture(scope="module")
def network() -> Classifier:
    """Return three convolutions, of which two are equal."""
    b = GraphBuilder(0, x=(3, 6, 5))
    first = b.conv("first", "x", 8, 3)
    second = b.conv("second", first, 8, 3)
    return classifier_of(b.build(b.reshape("flat", b.conv("third", second, 8, 3), (8 * 30,))))


def silent(what: str, done: int, total: int) -> None:
    """Show no progress."""


def problems_of(classifier: Classifier, *batches: int) -> dict[ConvProblem, list[str]]:
    return conv_problems(classifier.rewritten.graph, batches)


def unlikely(problem: ConvProblem) -> str:
    """Return choices that the heuristic would not make."""
    estimated = heuristic(H200)(problem)
    return str(next(choice for choice in reversed(choices(problem)) if choice != estimated))


def measured(path: Path, conditions: Conditions, *problems: ConvProblem) -> Path:
    """Return a file of measurements in which unlikely choices are fastest."""
    one = Timing(1.0, 1.0, 1.0)
    for problem in problems:
        outcome = Outcome(1.0, Times(one, one))
        TuningStore(path).add(keys(conditions)(problem), {unlikely(problem): outcome})
    return path


def test_every_problem_is_measured_once_whatever_has_it(network: Classifier) -> None:
    problems = problems_of(network, 1, 2)
    assert [(each.n, each.c) for each in problems] == [(1, 3), (2, 3), (1, 8), (2, 8)]
    assert [len(names) for names in problems.values()] == [1, 1, 2, 2]
    assert {name for names in problems.values() for name in names} == set(NODES)


def test_a_network_is_measured_and_reported_problem_by_problem(
    network: Classifier, device: CusimDevice, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "tuning.json"
    heard: list[str] = []

    def measure(top: int | None = 1) -> list[str]:
        report = tune(
            network,
            max_batch=2,
            tuning=store,
            top=top,
            progress=lambda what, done, total: heard.append(what),
        )
        assert (report.name, report.device, report.store) == (network.name, device.name, store)
        assert [each.problem for each in report.problems] == list(
            map(str, problems_of(network, 1, 2))
        )
        for problem, each in zip(problems_of(network, 1, 2), report.problems, strict=True):
            best, *_ = each.ranked
            assert best.us == (best.warm_us + best.cold_us) / 2 > 0
            assert [other.us for other in each.ranked] == sorted(other.us for other in each.ranked)
            assert each.flops == 2 * problem.macs
            assert each.effective_tflops == pytest.approx(each.flops / (best.us / 1e6) / 1e12)
            assert each.roofline_share == pytest.approx(each.roofline_us / best.us)
            assert each.failures == ()
        return [each.ranked[0].name for each in report.problems]

    winners = measure()
    assert any(what.startswith("measuring N2 C8") for what in heard)
    heard.clear()
    assert measure() == winners
    assert heard == ["measured"]


def test_the_roofline_is_arithmetic_or_memory_whichever_takes_longer(
    network: Classifier, device: CusimDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (problem, *_) = problems_of(network, 1)
    elements = 3 * 30 + 8 * 3 * 9 + 8 + 8 * 30
    halves = replace(network, precision=Precision.FP16)
    monkeypatch.setattr(
        "kernels.convolution.algorithms.ALGORITHMS", (DirectConv(), GemmConv(), TensorConv())
    )
    monkeypatch.setattr(device, "architecture", "80")  # of 16 times the rate for halves
    for at, flops, bandwidth, expected in (
        (network, 1e6, 1e12, 2 * problem.macs),
        (network, 1e12, 1e6, 4 * elements),
        (halves, 1e6, 1e12, 2 * problem.macs / 16),
        (halves, 1e12, 1e6, 2 * elements),
    ):
        monkeypatch.setattr(device, "peak_flops", flops)
        monkeypatch.setattr(device, "peak_bandwidth", bandwidth)
        report = tune(at, max_batch=1, tuning=tmp_path / "t", top=1, progress=silent)
        assert report.problems[0].roofline_us == pytest.approx(expected)


def test_without_a_gpu_one_is_told_so(
    network: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", CudaDevice)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(
        EngineError, match=r"CuPy cannot be imported .* without a GPU, choices are estimated$"
    ):
        tune(network, max_batch=1, tuning=tmp_path / "t", progress=silent)


def test_a_lost_device_is_told_with_what_was_kept(
    network: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(self: CusimDevice, kernel: Kernel, *rest: object, **options: object) -> None:
        raise FaultError("an illegal memory access was encountered")

    monkeypatch.setattr(CusimDevice, "launch", launch)
    says = rf"a kernel failed on .*: an illegal .* are in {tmp_path}/t; run `convoy tune` again"
    with pytest.raises(EngineError, match=says):
        tune(network, max_batch=1, tuning=tmp_path / "t", progress=silent)


def test_a_file_that_is_no_store_is_told_before_anything_is_measured(
    network: Classifier, tmp_path: Path
) -> None:
    (tmp_path / "t").write_text("[]")
    for use in (
        lambda: tune(network, max_batch=1, tuning=tmp_path / "t", progress=silent),
        lambda: open_engine(network, device=DeviceKind.CUDA, max_batch=1, tuning=tmp_path / "t"),
        lambda: plan_report(network, 1, GPUS["h200"], tmp_path / "t"),
        lambda: precompile(network, ["80"], max_batch=1, tuning=tmp_path / "t"),
    ):
        with pytest.raises(EngineError, match=rf"{tmp_path}/t holds no measurements"):
            use()


def kernels_of(engine: object) -> set[Instantiation]:
    assert isinstance(engine, CudaEngine)
    return {step.launch.instantiation for plan in engine.plans.values() for step in plan.steps}


def test_an_engine_runs_what_was_measured_and_times_nothing(
    network: Classifier,
    device: CusimDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Copies, "__init__", None)
    problems = [
        problem for problem in problems_of(network, 1, 2) if (problem.n, problem.c) != (1, 3)
    ]
    store = measured(tmp_path / "t", conditions_of(device), *problems)
    with caplog.at_level(logging.INFO, "convoy"):
        engine = open_engine(network, device=DeviceKind.CUDA, max_batch=2, tuning=store)
    assert isinstance(engine, CudaEngine)
    # The network has no ONNX form that ONNX Runtime could run, and so prove the engine by.
    monkeypatch.setattr(engine, "_prove", unproved)
    assert (
        "5 of 6 convolutions for batch sizes 1 to 2 use measured algorithms; the others use est"
        in caplog.text
    )
    for problem in problems:
        won = next(choice for choice in choices(problem) if str(choice) == unlikely(problem))
        assert instantiations(problem, won) <= kernels_of(engine)
    engine.warm_up()
    images = pixels(network, 2)
    error = relative_error(engine.run(images).scores, reference_scores(network, images))
    assert error < network_tolerance(network.network.graph)
    engine.close()


def test_the_default_file_need_not_be_there_but_one_that_is_named_must(
    network: Classifier,
    tmp_path: Path,
    device: CusimDevice,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "convoy"):
        open_engine(network, device=DeviceKind.CUDA, max_batch=1).close()
    assert (
        "0 of 3 convolutions for batch sizes 1 to 1 use measured algorithms; the others"
        in caplog.text
    )
    with pytest.raises(EngineError, match=f"no measurements at {tmp_path}/t; run `convoy tune`"):
        open_engine(network, device=DeviceKind.CUDA, max_batch=1, tuning=tmp_path / "t")
    caplog.clear()
    elsewhere = measured(tmp_path / "e", H200_HERE, *problems_of(network, 1))
    with caplog.at_level(logging.INFO, "convoy"):
        open_engine(network, device=DeviceKind.CUDA, max_batch=1, tuning=elsewhere).close()
    assert "0 of 3 convolutions" in caplog.text
    store = measured(tmp_path / "t", conditions_of(device), *problems_of(network, 1))
    monkeypatch.setattr("models.tuning.measured.DEFAULT_STORE", store)
    with caplog.at_level(logging.INFO, "convoy"):
        open_engine(network, device=DeviceKind.CUDA, max_batch=1).close()
    assert caplog.text.endswith(
        "3 of 3 convolutions for batch sizes 1 to 1 use measured algorithms\n"
    )


def test_an_engine_without_a_compiler_says_what_to_install(
    network: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiler(self: CusimDevice) -> str:
        raise CompilerNotFoundError("NVRTC was not found")

    monkeypatch.setattr(CusimDevice, "compiler", property(compiler))
    with pytest.raises(EngineError, match="NVRTC was not found"):
        open_engine(network, device=DeviceKind.CUDA, max_batch=1)


def test_a_plan_names_what_was_chosen_and_whether_it_was_measured(
    network: Classifier, tmp_path: Path
) -> None:
    first, second = problems_of(network, 1)
    store = measured(tmp_path / "t", H200_HERE, first)
    report = plan_report(network, 1, GPUS["h200"], store)
    chosen = {step.name: (step.chosen, step.measured) for step in report.steps}
    assert chosen[NODES[0]] == (unlikely(first), True)
    assert chosen[NODES[2]] == (str(heuristic(H200)(second)), False)
    assert chosen["convoy/images"] == ("", False)
    assert {step.measured for step in plan_report(network, 1, GPUS["h200"]).steps} == {False}
    says = rf"{tmp_path}/t has measurements on NVIDIA H200, but not on H100"
    with pytest.raises(EngineError, match=says):
        plan_report(network, 1, GPUS["h100"], store)


def test_of_several_drivers_the_one_measured_last_is_shown(
    network: Classifier, tmp_path: Path
) -> None:
    first, second = problems_of(network, 1)
    store = measured(tmp_path / "t", H200_HERE, first)
    measured(store, replace(H200_HERE, driver="CUDA 13.1"), second)
    steps = {step.name: step for step in plan_report(network, 1, GPUS["h200"], store).steps}
    assert [steps[name].measured for name in NODES] == [False, True, True]


def test_a_short_name_is_no_part_of_another(network: Classifier, tmp_path: Path) -> None:
    (problem, *_) = problems_of(network, 1)
    other = Conditions("NVIDIA L40S", "89", "CUDA 13.0", "NVRTC 13.0")
    store = measured(tmp_path / "t", other, problem)
    with pytest.raises(EngineError, match="on NVIDIA L40S, but not on L4"):
        plan_report(network, 1, GPUS["l4"], store)


def test_the_winners_kernels_are_compiled_ahead_of_time_too(
    network: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = problems_of(network, 1)
    store = measured(tmp_path / "t", H200_HERE, first)
    cache = tmp_path / "cubins"
    count = precompile(network, ["90a"], max_batch=1, tuning=store, cache=cache)
    measured(tmp_path / "a100", replace(H200_HERE, architecture="80"), first)
    other = precompile(network, ["90a"], max_batch=1, tuning=tmp_path / "a100", cache=cache)
    assert other < count
    monkeypatch.setattr(
        "kernels.device.nvrtc.compile_program", None
    )  # nothing is compiled from here on
    won = next(choice for choice in choices(first) if str(choice) == unlikely(first))
    for kernel in instantiations(first, won):
        assert compile_kernel(kernel, "90a", cache).code


def test_a_device_that_cannot_measure_says_why(
    network: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: CusimDevice, instantiation: Instantiation) -> None:
        raise DeviceError("NVRTC was not found")

    monkeypatch.setattr(CusimDevice, "load", load)
    with pytest.raises(EngineError, match=r"simulator.* cannot measure .*: NVRTC was not found"):
        tune(network, max_batch=1, tuning=tmp_path / "t", progress=silent)
