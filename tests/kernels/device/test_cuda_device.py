"""Properties of CudaDevice that only a GPU shows, and the errors if there is none."""

import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernels.device import cuda_device
from kernels.device.compile import Cubin, Resources, compile_kernel
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import Device, DeviceError, FaultError, Instantiation
from kernels.device.launch import instantiate
from tests.support.kernels.fake_cupy import ILLEGAL_ADDRESS, FakeCupy
from tests.support.kernels.resources import ARCHITECTURES, CACHE


def test_where_no_gpu_answers_the_error_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"pip install -c constraints.txt -e '\.\[cuda13\]'"):
        CudaDevice()


def test_where_there_is_cupy_but_no_gpu_the_error_is_cudas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(devices=0))
    monkeypatch.setattr(cuda_device, "_thread", threading.local())  # which has asked for no other
    with pytest.raises(DeviceError, match="CUDA device 0 cannot be used: cudaError100"):
        CudaDevice()


def test_without_a_driver_cupy_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(cuda_device, "has_driver", lambda: False)
    with pytest.raises(DeviceError, match="device 0 cannot be used: no NVIDIA driver is"):
        CudaDevice()
    assert "cupy" not in sys.modules


def test_every_call_after_a_fault_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    device = CudaDevice(cache=CACHE)
    stream = device.stream()
    kernel = device.load(instantiate("lrn.cu", "lrn", t="float"))
    cupy.fault = ILLEGAL_ADDRESS
    for call in (
        device.synchronize,
        stream.synchronize,
        lambda: device.launch(kernel, (1, 1, 1), (1, 1, 1), 0, (), stream),
    ):
        with pytest.raises(FaultError, match="700"):
            call()


def test_its_peaks_and_versions_are_what_cuda_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy())
    device = CudaDevice(cache=CACHE)
    assert device.peak_flops == pytest.approx(66.9e12, rel=0.001)  # the H200's data sheet
    assert device.peak_bandwidth == pytest.approx(4.8e12, rel=0.03)
    assert device.driver == "CUDA 12.8"
    assert re.fullmatch(r"NVRTC \d+\.\d+", device.compiler)


def test_one_thread_does_not_wait_for_what_another_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy())
    both = threading.Barrier(2, timeout=30)  # breaks where they take turns

    def compiling(instantiation: Instantiation, *_: object) -> Cubin:
        both.wait()
        return Cubin(b"", instantiation.kernel, Resources(0, 0, 0, 0, 0))

    monkeypatch.setattr("kernels.device.cuda_device.compile_kernel", compiling)
    device = CudaDevice(cache=CACHE)
    with ThreadPoolExecutor(2) as pool:
        names = [Instantiation("lrn.cu", name) for name in ("one", "other")]
        kernels = list(pool.map(device.load, names))
    assert [kernel.instantiation for kernel in kernels] == names


def test_more_shared_memory_than_48_kib_is_asked_for_once_and_never_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cupy = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    device = CudaDevice(cache=CACHE)
    stream = device.stream()
    kernel = device.load(instantiate("lrn.cu", "lrn", t="float"))
    granted = []
    for shared_bytes in (1000, 100_000, 60_000):
        device.launch(kernel, (1, 1, 1), (32, 1, 1), shared_bytes, (), stream)
        granted.append(kernel.function.max_dynamic_shared_size_bytes)
    assert granted == [(48 << 10) - 64, 100_000, 100_000]


def test_all_kernels_prefer_the_same_share_of_shared_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy())
    device = CudaDevice(cache=CACHE)
    lrn, top_k = (
        instantiate("lrn.cu", "lrn", t="float"),
        instantiate("top_k.cu", "top_k", x="float", kind="ScoreKind::LOGITS", threads=1024),
    )
    preferred = {
        device.load(each).function.preferred_shared_memory_carveout for each in (lrn, top_k)
    }
    assert preferred == {100}


def test_cupy_is_given_the_machine_code_that_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    lrn = instantiate("lrn.cu", "lrn", t="float")
    CudaDevice(cache=CACHE).load(lrn)
    assert cupy.loaded == [compile_kernel(lrn, "90a", CACHE).code]


@pytest.mark.gpu
def test_a_kernel_tells_its_registers_and_spills(cuda_device: Device) -> None:
    kernel = cuda_device.load(instantiate("lrn.cu", "lrn", t="float"))
    assert kernel.registers is not None
    assert 0 < kernel.registers <= 64
    assert kernel.local_bytes == 0


@pytest.mark.gpu
def test_the_gate_compiles_for_this_architecture(cuda_device: Device) -> None:
    assert cuda_device.architecture in ARCHITECTURES


_WRITE_TO_NOWHERE = """
from kernels.device.cuda_device import CudaDevice
from kernels.device.device import FaultError
from kernels.operations.elementwise import fill_launch
from kernels.layout.strided import Strided
device = CudaDevice()
stream = device.stream()
launch = fill_launch(Strided.contiguous((64,)), 1.0)
kernel = device.load(launch.instantiation)
device.launch(kernel, launch.grid, launch.block, 0, launch.bind({"y": 1 << 40}), stream)
try:
    stream.synchronize()
except FaultError as error:
    print(error)
try:
    device.allocate(4)
except FaultError as error:
    print("then", error)
"""


@pytest.mark.gpu
def test_an_asynchronous_fault_is_named_and_the_device_stays_lost(cuda_device: Device) -> None:
    # In a process of its own, for which the device is lost afterwards.
    said = subprocess.run(
        [sys.executable, "-c", _WRITE_TO_NOWHERE], capture_output=True, text=True, check=True
    ).stdout
    assert "cudaErrorIllegalAddress" in said.splitlines()[0]
    assert said.splitlines()[1].startswith("then cudaErrorIllegalAddress")
