"""The stand-in for CuPy compared with the installed CuPy, which can be imported without a GPU."""

import ctypes
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernels.device.cuda_device import _raw_argument
from kernels.device.device import PlainArgument
from tests.support.kernels import fake_cupy
from tests.support.kernels.fake_cupy import FakeCupy

# Attributes that only the stand-in has: faults to inject, and its record of calls.
_ITS_OWN = {"fault", "capturing", "loaded", "streams", "ask"}
_CLASSES = {
    "cuda.Stream": fake_cupy.FakeStream,
    "cuda.Event": fake_cupy.FakeEvent,
    "cuda.graph.Graph": fake_cupy.FakeGraph,
    "cuda.memory.Memory": fake_cupy.FakeMemory,
    "RawModule": fake_cupy.FakeRawModule,
    "RawKernel": fake_cupy.FakeRawKernel,
}


def names(fake: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every name of the stand-in, including those in namespaces, as a dotted path with its
    value."""
    for name in dir(fake):
        if name.startswith("_") or name in _ITS_OWN:
            continue
        value = getattr(fake, name)
        yield path + name, value
        if isinstance(value, SimpleNamespace | fake_cupy.FakeRuntime):
            yield from names(value, f"{path}{name}.")


NAMES = dict(names(FakeCupy()))
METHODS = {
    f"{path}.{name}": value
    for path, fake in _CLASSES.items()
    for name, value in vars(fake).items()
    if name == "__call__" or not name.startswith("_")
}


def cupy() -> Any:
    """Import CuPy, which only the process of these tests does."""
    return pytest.importorskip("cupy", reason="the CuPy wheel is not installed (extra cuda13)")


def real(path: str) -> Any:
    """Return the attribute of CuPy at a dotted path."""
    value = cupy()
    for name in path.split("."):
        value = getattr(value, name)
    return value


def parameters(function: Any) -> list[str]:
    """Return the names of the parameters; a compiled function has its signature only in its
    docstring."""
    try:
        found = list(inspect.signature(function).parameters)
    except ValueError:
        found = ["args", "kwargs"]
    if found[-2:] == ["args", "kwargs"]:
        text = re.search(r"\((.*?)\)(?: ->.*)?$", (function.__doc__ or "").partition("\n")[0])
        assert text is not None, f"{function} does not say what it takes"
        found = [part.split("=")[0].split()[-1] for part in text[1].split(",") if part]
    return [name for name in found if name not in ("self", "/", "*")]


@pytest.mark.parametrize("path", [*NAMES, *METHODS])
def test_cupy_has_every_name_of_the_stand_in(path: str) -> None:
    real(path)


@pytest.mark.parametrize(
    "path",
    [path for path, value in {**NAMES, **METHODS}.items() if inspect.isroutine(value)],
)
def test_cupys_functions_take_what_the_stand_ins_take(path: str) -> None:
    fake: Callable[..., Any] = {**NAMES, **METHODS}[path]
    ours = [name for name in inspect.signature(fake).parameters if name != "self"]
    theirs = parameters(real(path))
    if path == "RawKernel.__call__":
        theirs = ["grid", "block", "args", *launch_options()]
    # By position where CuPy's are given so, by name where the stand-in's have to be.
    by_name = [
        each.name
        for each in inspect.signature(fake).parameters.values()
        if each.kind is each.KEYWORD_ONLY
    ]
    by_position = [name for name in ours if name not in by_name]
    assert set(by_name) <= set(theirs)
    if path == "cuda.Stream":
        assert set(by_position) <= set(theirs)  # which CudaDevice says by name
    else:
        assert by_position == theirs[: len(by_position)]


def launch_options() -> list[str]:
    """Return the options that RawKernel passes to Function.__call__, which refuses all others."""
    options = []
    its_class = real("cuda.function.Function")
    for name in ("shared_mem", "stream", "no_such_option"):
        function = its_class.__new__(its_class)
        with pytest.raises((TypeError, AttributeError)) as raised:
            # No grid is a tuple here: what is said of the options comes before that or instead.
            its_class.__call__(function, [], (), (), **{name: None})
        if "unexpected keyword" not in str(raised.value):
            options.append(name)
    assert "no_such_option" not in options
    return options


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (np.int32(-5), np.int32(-5).tobytes()),
        (np.uint32(7), np.uint32(7).tobytes()),
        (np.int64(1 << 40), np.int64(1 << 40).tobytes()),
        (np.float32(1.5), np.float32(1.5).tobytes()),
        (5, (5).to_bytes(8, "little")),
        (0x7F00_1234_5600, (0x7F00_1234_5600).to_bytes(8, "little")),
        (bytes(range(84)), bytes(range(84))),
    ],
    ids=["int", "unsigned", "long", "float", "small address", "address", "struct"],
)
def test_an_argument_becomes_the_bytes_that_the_kernel_reads(
    argument: PlainArgument, expected: bytes
) -> None:
    raw = _raw_argument(argument)
    if isinstance(raw, np.ndarray):
        assert raw.size == 1  # CuPy passes arrays of one element by value, and no others
        parameter = real("cuda.function.CNumpyArray")(raw)
    else:
        parameter = real("_core._scalar.CScalar")(raw)
    assert ctypes.string_at(parameter.ptr, len(expected)) == expected
    assert fake_cupy._parameter(raw) == expected


def test_a_device_is_refused_where_there_is_no_driver_or_cupy_finds_no_gpu() -> None:
    # In a process of its own: that CuPy found no driver is remembered.
    program = (
        "from kernels.device.cuda_device import CudaDevice\n"
        "from kernels.device.device import DeviceError\n"
        "try:\n    print('a GPU:', CudaDevice().name)\n"
        "except DeviceError as error:\n    print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith(("a GPU:", "CUDA device 0 cannot be used: "))
