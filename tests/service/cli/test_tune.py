"""`convoy tune`: its output, its file, and the file's use in engines and in `convoy inspect`."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cusim.device import CusimDevice
from kernels.convolution.direct import DirectConv
from kernels.convolution.gemm import GemmConv
from kernels.tuning.store import Outcome, TuningStore
from loadtest.tables import print_table
from models import TOP_CANDIDATES, ProblemReport, TuningReport
from models.tuning.tune import MeasuredCandidate
from service.cli.tune import tuning_table
from tests.service.cli.test_cli import SAMPLES
from tests.support.command_line import Run

BEST = MeasuredCandidate("direct 64x64x16", us=10.0, warm_us=8.0, cold_us=12.0)
NEXT = MeasuredCandidate("gemm 32x32x32", us=12.5, warm_us=9.0, cold_us=16.0)


def problem(n: int, nodes: tuple[str, ...], *ranked: MeasuredCandidate) -> ProblemReport:
    return ProblemReport(nodes, f"N{n} C8", n, 200_000_000, 4.0, ranked, ())


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = CusimDevice()
    yield device
    device.close()


@pytest.fixture
def gpu(device: CusimDevice, monkeypatch: pytest.MonkeyPatch) -> CusimDevice:
    """Use the simulator in place of a GPU."""
    monkeypatch.setattr("kernels.device.cuda_device.CudaDevice", lambda *_: device)
    # Few algorithms, whatever else there is: each takes time to compile and to simulate.
    monkeypatch.setattr("kernels.convolution.algorithms.ALGORITHMS", (DirectConv(), GemmConv()))
    return device


def test_the_table_has_winner_runner_up_and_rates_and_below_each_batch_in_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    problems = (
        problem(1, ("a", "b", "c"), BEST, NEXT),
        problem(2, ("a", "b", "c"), BEST),
        problem(1, ("d",)),
        problem(2, ("d",), NEXT),
    )
    print_table(tuning_table(TuningReport("net", "GPU", Path("/t.json"), problems)))
    heading, first, second, third, _, _, legend, one, two = capsys.readouterr().out.splitlines()
    assert heading.split() == [
        *("layers", "problem", "winner", "us", "warm", "us", "cold", "runner-up", "slower"),
        *("TFLOPS", "roofline"),
    ]
    assert first.split() == [
        *("a", "and", "2", "more", "N1", "C8", "direct", "64x64x16", "8.0", "12.0"),
        *("gemm", "32x32x32", "25%", "20.00", "40%"),
    ]
    assert second.split()[-2:] == ["20.00", "40%"]
    assert "none could be used" in third
    assert legend.startswith("net on GPU. TFLOPS: operations of direct convolution")
    assert one == "N = 1: 3 convolutions, 30.0 us, 20.00 TFLOPS"
    assert two == "N = 2: 4 convolutions, 42.5 us, 18.82 TFLOPS"


@pytest.mark.usefixtures("gpu")
def test_what_was_tuned_is_kept_shown_and_run_and_what_failed_is_told(
    convoy: Run, tmp_path: Path
) -> None:
    store = tmp_path / "tuning.json"
    tune = ("tune", "digits", "--max-batch", "1", "--top", "1", "--tuning", store)
    status, out, error = convoy(*tune)
    assert status == 0, error
    assert re.search(r"^measured .* 6/6 ", error)
    assert "N = 1: 7 convolutions, " in out
    written = store.read_text()
    status, out, _ = convoy(*tune)
    assert status == 0
    assert store.read_text() == written
    status, out, error = convoy(
        "classify", "digits", SAMPLES[3], "--device", "cuda", "--tuning", store
    )
    assert status == 0, error
    assert out.split()[-2] == "3"
    key, *_ = TuningStore(store).read()
    TuningStore(store).add(key, {"direct 1x1x1": Outcome(failure="WrongResultError: all wrong")})
    status, out, error = convoy(*tune)
    assert status == 1
    assert f"Error: direct 1x1x1 is not used for {key.problem}: WrongResultError: all" in error
    assert "N = 1: 7 convolutions" in out


@pytest.mark.usefixtures("gpu")
def test_exhaustive_and_again_say_what_is_measured(
    convoy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []

    def tune(classifier: object, **options: object) -> TuningReport:
        asked.append(options)
        return TuningReport("digits", "GPU", tmp_path, ())

    monkeypatch.setattr("service.cli.tune.measure", tune)
    monkeypatch.setenv("CONVOY_TUNING", str(tmp_path / "set"))
    assert convoy("tune", "digits")[0] == 0
    assert convoy("tune", "digits", "--exhaustive", "--max-batch", "3")[0] == 0
    assert convoy("tune", "digits", "--top", "5", "--again", "--tuning", "flag")[0] == 0
    seen = [[o[name] for name in ("max_batch", "top", "anew", "tuning")] for o in asked]
    assert seen == [
        [8, TOP_CANDIDATES, False, tmp_path / "set"],
        [3, None, False, tmp_path / "set"],
        [8, 5, True, Path("flag")],
    ]


def test_without_a_gpu_it_is_one_line_that_says_what_to_do(
    convoy: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    status, out, error = convoy("tune", "digits", "--tuning", tmp_path / "t")
    assert (status, out) == (1, "")
    (line,) = error.splitlines()
    assert line.startswith("Error: CuPy cannot be imported")
    assert not (tmp_path / "t").exists()


@pytest.mark.usefixtures("gpu")
def test_interrupted_it_says_what_is_kept_and_where(
    convoy: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "tuning.json"
    add = TuningStore.add
    added: list[object] = []

    def interrupted(self: TuningStore, *arguments: object, **options: object) -> None:
        add(self, *arguments, **options)  # type: ignore[arg-type]
        added.append(arguments)
        if len(added) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(TuningStore, "add", interrupted)
    status, out, error = convoy(
        "tune", "digits", "--max-batch", "1", "--top", "1", "--tuning", store
    )
    assert (status, out) == (1, "")
    assert error.splitlines()[-1] == (
        f"Interrupted. Results so far are in {store}; run the command again to continue"
    )
    assert len(TuningStore(store).read()) == 2


def test_a_file_that_holds_something_else_is_one_line(
    convoy: Run, gpu: CusimDevice, tmp_path: Path
) -> None:
    (tmp_path / "t").write_text("{}")
    for arguments in (
        ("tune", "digits", "--max-batch", "1"),
        ("classify", "digits", SAMPLES[0], "--device", "cuda"),
        ("inspect", "digits", "--plan"),
        ("compile", "digits", "--arch", "80"),
    ):
        status, out, error = convoy(*arguments, "--tuning", tmp_path / "t")
        assert (status, out) == (1, "")
        assert error.splitlines()[-1].startswith(f"Error: {tmp_path}/t holds no measurements")


def test_a_plan_is_shown_with_what_was_chosen(convoy: Run) -> None:
    status, out, _ = convoy("inspect", "digits", "--plan")
    assert status == 0
    (stem,) = [line for line in out.splitlines() if line.startswith("stem_bn ")]
    assert "measured" not in stem
    status, out, _ = convoy("inspect", "digits", "--plan", "--json")
    chosen = {step["name"]: step["chosen"] for step in json.loads(out)["steps"]}
    assert chosen["stem_bn"]
    assert chosen["stem_bn"] in stem
