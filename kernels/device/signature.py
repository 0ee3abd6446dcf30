"""Reads declarations from CUDA C++ sources: parameters, template parameters and struct fields.

C++ passes arguments by position: two `int`s in the wrong order would compile, and give wrong
results. Therefore Python passes arguments by name, and compares the names with the names in the
source.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path

from kernels.device.compile import include_names
from kernels.device.device import Instantiation

_COMMENT = re.compile(r"//[^\n]*")
_TEMPLATE_ARGUMENTS = re.compile(r"<[^<>]*>")


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declared parameter of a kernel, or a declared field of a struct. For example, `type` is "*"
    for `const float* x`, and "Walk" for `Walk<2> walk`."""

    type: str
    name: str
    length: int | None = 1  # of an array; None where it depends on template arguments
    element: str | None = None  # what a pointer points to: "float", "T"
    written: bool = False  # a pointer that is not to const
    restricted: bool = False  # a pointer with __restrict__


@cache
def parameters(source: Path, kernel: str) -> tuple[Declaration, ...]:
    """Return the parameters of a kernel in a file. Raises TypeError if the file has no such
    kernel."""
    declared = _TEMPLATE_ARGUMENTS.sub("", _kernel(source, kernel)["parameters"])
    return _declared(declared.split(","))


def check_template(instantiation: Instantiation, source: Path) -> None:
    """Raise TypeError if the template's parameters in the file and the arguments have different
    names."""
    template = _template(source, instantiation.kernel)
    given = (name.upper() for name, _ in instantiation.arguments)
    check_names(f"the template of {instantiation.kernel}", template, given)


@cache
def fields(source: Path, struct: str) -> tuple[Declaration, ...]:
    """Return the fields of a struct in a file or its includes, beginning with the fields of its
    base.

    Raises TypeError if there is no such struct.
    """
    pattern = re.compile(
        rf"\bstruct\s+{re.escape(struct)}\s*(?::\s*(?P<base>\w+)\s*)?{{(?P<fields>[^}}]*)}}"
    )
    for name in include_names(source.name, source.parent):
        if found := pattern.search(_text(source.with_name(name))):
            of_base = fields(source, found["base"]) if found["base"] else ()
            return of_base + _declared(found["fields"].split(";"))
    raise TypeError(f"{source.name} has no struct {struct}")


def check_names(what: str, declared: Iterable[str], given: Iterable[str]) -> None:
    """Raise TypeError if `given` and `declared` differ in names or order. The error names the first
    difference."""
    for place, (want, have) in enumerate(zip_longest(declared, given, fillvalue="nothing"), 1):
        if want != have:
            raise TypeError(f"argument {place} of {what} must be {want} as declared, got {have}")


@cache
def _template(source: Path, kernel: str) -> tuple[str, ...]:
    declared = (_kernel(source, kernel)["template"] or "").split(",")
    names = (parameter.partition("=")[0].split()[-1:] for parameter in declared)
    return tuple(name.upper() for (name,) in filter(None, names))


def _kernel(source: Path, kernel: str) -> re.Match[str]:
    found = re.search(
        r"(?:template\s*<(?P<template>[^{};]*)>\s*)?"
        rf"__global__[^;{{]*?\b{re.escape(kernel)}\s*\((?P<parameters>[^)]*)\)",
        _text(source),
    )
    if found is None:
        raise TypeError(f"{source.name} has no kernel {kernel}")
    return found


def _text(source: Path) -> str:
    return _COMMENT.sub("", source.read_text(encoding="utf-8"))


def _declared(declarations: Iterable[str]) -> tuple[Declaration, ...]:
    found = []
    for declaration in filter(str.strip, declarations):
        words, *lengths = re.split(r"[\[\]]+", declaration.strip().rstrip("]"))
        restricted = "__restrict__" in words
        *kind, name = words.replace("*", " * ").replace("__restrict__", "").split()
        length = 1
        for axis in lengths:
            length = length * int(axis) if length and axis.isdigit() else 0
        pointer = "*" in kind
        points_to = kind[kind.index("*") - 1] if pointer else None
        written = pointer and "const" not in kind
        found.append(
            Declaration(
                "*" if pointer else kind[-1],
                name,
                length or None,
                points_to,
                written,
                restricted,
            )
        )
    return tuple(found)
