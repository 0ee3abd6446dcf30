"""Describes a kernel launch without a device: the kernel, the geometry and the arguments."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from operator import index
from struct import error as struct_error
from struct import pack
from typing import Any

import numpy as np

from kernels.device.device import (
    NO_CLUSTERS,
    SOURCE_ROOT,
    Argument,
    Dim3,
    Instantiation,
    TemplateArgument,
)
from kernels.device.signature import Declaration, check_names, check_template, fields, parameters
from kernels.device.tensor_map import TensorMap
from kernels.problems.architectures import ALL, Architectures
from kernels.problems.window import Window

Value = int | float | str | bytes | TensorMap
"""An argument of `launch`."""

THREADS = 256
"""Threads per block of kernels with one output per thread. The number is low enough that small
images fill a GPU with blocks, and high enough that a block's warps hide the latency of memory."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel with its geometry and arguments.

    A `str` argument or a tensor map with a `str` base names an operand ("x", "weight", "y") whose
    address is not known yet. `bind` replaces the name with the address.
    """

    instantiation: Instantiation
    grid: Dim3
    block: Dim3
    arguments: tuple[Argument | str, ...]
    shared_bytes: int = 0  # dynamic, a block
    cluster: Dim3 = NO_CLUSTERS

    @property
    def operands(self) -> tuple[str, ...]:
        """Return the names of the operands to bind, in the order of the arguments."""
        return tuple(dict.fromkeys(name for name, _ in self._named()))

    @property
    def elements(self) -> dict[str, str]:
        """Return the C++ type of each operand, such as "float" or "Half", by the operand's name."""
        named = {name.upper(): value for name, value in self.instantiation.arguments}
        return {
            operand: str(named.get(declared.element, declared.element))
            for operand, declared in self._named()
            if declared.element is not None
        }

    @property
    def writes(self) -> frozenset[str]:
        """Return the operands that the kernel may write: the operands whose pointers are not
        const."""
        return frozenset(operand for operand, declared in self._named() if declared.written)

    @property
    def restricted(self) -> frozenset[str]:
        """Return the operands that are declared `__restrict__`. No launch may write these operands
        (kernels/src/dependent.cuh)."""
        return frozenset(operand for operand, declared in self._named() if declared.restricted)

    def _named(self) -> Iterator[tuple[str, Declaration]]:
        """Yield the name of each operand, and its parameter's declaration in the kernel's
        source."""
        declared = parameters(SOURCE_ROOT / self.instantiation.source, self.instantiation.kernel)
        for parameter, argument in zip(declared, self.arguments, strict=True):
            if isinstance(argument, TensorMap) and isinstance(argument.base, str):
                yield argument.base, replace(parameter, element=argument.stored.element)
            elif isinstance(argument, str):
                yield argument, parameter

    def bind(self, addresses: Mapping[str, int]) -> tuple[Argument, ...]:
        """Return the arguments, with each operand's name replaced by its address.

        Raises KeyError for a missing operand, and ValueError if a tensor map's operand is not
        aligned.
        """
        return tuple(_bound(argument, addresses) for argument in self.arguments)

    def renamed(self, names: Mapping[str, str]) -> "Launch":
        """Return this launch with renamed operands. `names` maps old names to new names."""
        return replace(
            self, arguments=tuple(_renamed(argument, names) for argument in self.arguments)
        )


def _bound(argument: Argument | str, addresses: Mapping[str, int]) -> Argument:
    match argument:
        case str():
            return addresses[argument]
        case TensorMap(base=str() as operand):
            return argument.at(addresses[operand])
    return argument


def _renamed(argument: Argument | str, names: Mapping[str, str]) -> Argument | str:
    match argument:
        case str():
            return names.get(argument, argument)
        case TensorMap(base=str() as operand):
            return argument.at(names.get(operand, operand))
    return argument


def instantiate(
    source: str,
    kernel: str,
    architectures: Architectures = ALL,
    /,
    **arguments: TemplateArgument,
) -> Instantiation:
    """Return an instantiation of the kernel template `kernel`. `arguments` must have the names and
    the order of the template's parameters."""
    return Instantiation(source, kernel, tuple(arguments.items()), architectures=architectures)


@cache
def template_arguments(config: Any) -> Mapping[str, TemplateArgument]:
    """Return the fields of a frozen dataclass by name, as arguments for a kernel template.

    Unlike `asdict`, this function copies nothing, because the choice of a kernel calls it thousands
    of times.
    """
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


def blocks_of_threads(threads: int) -> tuple[Dim3, Dim3]:
    """Return the grid and the block of a launch with at least `threads` threads."""
    return (-(-threads // THREADS), 1, 1), (THREADS, 1, 1)


def int32(number: int) -> np.int32:
    """Return the number as a C++ `int`, the type of all indices in kernels. Raises ValueError if
    the number exceeds 32 bits."""
    if not -(2**31) <= number < 2**31:
        raise ValueError(
            f"{number} is beyond 32 bits, the size of a kernel's indices; use a smaller tensor"
        )
    return np.int32(number)


def launch(
    instantiation: Instantiation,
    grid: Dim3,
    block: Dim3,
    shared_bytes: int = 0,
    cluster: Dim3 = NO_CLUSTERS,
    /,
    **arguments: Value,
) -> Launch:
    """Return a launch. The arguments must have the names and the order of the kernel's parameters.

    For a pointer, pass an operand's name or 0. For an `int`, a `float` or a Divisor, pass a number.
    For a tensor map, pass a TensorMap of an operand. For a struct, pass the result of `struct`.
    Raises a TypeError that names the first difference if arguments or template arguments differ
    from the source. Raises ValueError for numbers that `int32` or `divisor` refuses.
    """
    source = SOURCE_ROOT / instantiation.source
    check_template(instantiation, source)
    declared = parameters(source, instantiation.kernel)
    check_names(instantiation.kernel, [parameter.name for parameter in declared], arguments)
    passed = map(_passed, declared, arguments.values())
    return Launch(instantiation, grid, block, tuple(passed), shared_bytes, cluster)


def struct(source: str, name: str, /, **members: float | Iterable[int]) -> bytes:
    """Return the bytes of a C++ struct. Its fields may be integers, Divisors, floats, and arrays of
    integers or Divisors.

    `members` have the names and the order of the struct's fields. For a Divisor, pass the number by
    which it divides. Raises a TypeError that names the first wrong member if a member's name or
    length differs from the source. Raises ValueError for numbers that `divisor` refuses or that do
    not fit their field.
    """
    declared = fields(SOURCE_ROOT / source, name)
    check_names(f"struct {name} of {source}", [field.name for field in declared], members)
    form, numbers = "<", list[Any]()
    for field, value in zip(declared, members.values(), strict=True):
        flat: list[Any] = [value] if isinstance(value, int | float) else list(value)
        if field.length not in (None, len(flat)):
            raise TypeError(f"{name}.{field.name} needs {field.length} numbers, got {len(flat)}")
        if field.type == "Divisor":
            flat = [part for number in flat for part in _divisor(index(number))]
        form += f"{len(flat)}{_FORMS.get(field.type, 'i')}"
        numbers += flat
    try:
        return pack(form, *numbers)
    except struct_error as error:
        raise ValueError(f"a number does not fit its field in {name}: {error}") from error


_FORMS = {"Divisor": "I", "float": "f"}
"""The format in which `struct` packs a field, by the field's type. All other types are ints."""


def divisor(number: int) -> bytes:
    """Return the bytes of common.cuh's `Divisor`.

    With a Divisor, n // number = n · magic >> shift for 0 <= n < 2^31. magic is 2^shift / number,
    rounded up by less than 1. So n · magic / 2^shift exceeds n / number by less than n / 2^shift.
    This is at most 1 / number, which is too little to reach the next integer. Source: Granlund &
    Montgomery 1994, theorem 4.2. Raises ValueError unless 0 < number < 2^31.
    """
    return pack("<3I", *_divisor(number))


def _divisor(number: int) -> tuple[int, int, int]:
    if not 0 < number < 2**31:
        raise ValueError(f"a kernel's divisor must be from 1 to {2**31 - 1}, got {number}")
    shift = 31 + (number - 1).bit_length()
    return number, -(-(1 << shift) // number), shift


def window_struct(window: Window) -> bytes:
    """Return the bytes of a `Window` of kernels/src/window.cuh. There, a 2-D window has depth 1."""

    def three(axes: tuple[int, ...], missing: int) -> tuple[int, ...]:
        return (missing,) * (3 - len(axes)) + axes

    return struct(
        "window.cuh",
        "Window",
        input=three(window.input, 1),
        output=three(window.output, 1),
        kernel=three(window.kernel, 1),
        stride=three(window.strides, 1),
        dilation=three(window.dilations, 1),
        pad_begin=three(window.pads_begin, 0),
        pad_end=three(window.pads_end, 0),
    )


def _passed(parameter: Declaration, value: Value) -> Argument | str:
    match parameter.type, value:
        case "*", str() | int():  # an operand's name, or no address
            return value
        case "int", int():
            return int32(value)
        case "Divisor", int():
            return divisor(value)
        case "float", int() | float():
            return np.float32(value)
        case "TensorMap", TensorMap():
            return value
        case struct_name, bytes() if struct_name not in ("*", "int", "float", "TensorMap"):
            return value
    raise TypeError(f"{parameter.name} must be of the C++ type {parameter.type}, got {value!r}")
