"""In PTX, no instruction accesses a register of a wgmma between it and the wait for it.

The simulator cannot show the instructions that a compiler moves, because g++ and not NVRTC compiles
its kernels.
"""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from kernels.device.device import Instantiation
from tests.support.cases import INSTANTIATIONS
from tests.support.kernels import ptx
from tests.support.kernels.compilers import named, run_with
from tests.support.kernels.mutations import replaced

OF_WGMMA = ptx.with_products(INSTANTIATIONS)


def _kind(instantiation: Instantiation) -> tuple[str, ...]:
    arguments = dict(instantiation.arguments)
    named = (arguments.get(name, "") for name in ("precision", "filter_rows"))
    return (instantiation.kernel, *map(str, named))


def _one_of_each_kind() -> Iterator[Instantiation]:
    """Yield the instantiations with the smallest tile of each kernel, precision, and choice of
    wgmma's rows."""

    def tile(each: Instantiation) -> tuple[int, ...]:
        arguments = dict(each.arguments)
        return tuple(int(arguments.get(name, 0)) for name in ("bn", "bm"))

    ordered = sorted(OF_WGMMA, key=lambda each: (_kind(each), tile(each)))
    for _, group in groupby(ordered, _kind):
        yield next(group)


FEW = {" ".join(filter(None, _kind(each))): each for each in _one_of_each_kind()}


@pytest.mark.parametrize("kernel", FEW.values(), ids=FEW)
def test_nothing_touches_what_a_wgmma_under_way_uses(kernel: Instantiation) -> None:
    text = ptx.compiled(kernel)
    assert text.count("wgmma.mma_async.") >= 4
    assert text.count("wgmma.wait_group.") >= 1
    assert not ptx.touches(text)


@pytest.mark.slow
def test_nothing_touches_it_in_any_kernel() -> None:
    _hold(ptx.touches_of_all(OF_WGMMA))


@pytest.mark.slow
def test_nothing_touches_it_in_any_kernel_of_an_older_compiler() -> None:
    older = named("NVRTC 13.0")
    version, found = json.loads(run_with(older, ["-m", "tests.support.kernels.ptx"]))
    assert tuple(version) == older.version
    _hold(found)


def _hold(found: dict[str, list[str]]) -> None:
    assert found.keys() == {each.expression for each in OF_WGMMA}
    assert not {kernel: touched for kernel, touched in found.items() if touched}


_TMA, _TENSOR, _INTEGER = "tma_gemm.cu", "tensor_gemm.cu", "integer_gemm.cu"
_WAIT = "    if constexpr (WARPGROUPS)\n      wgmma_wait<0>();"
_FP16, _TF32, _TF32X3 = (f"Precision::{each}" for each in ("FP16", "TF32", "TF32X3"))

DEFECTS = {
    "an add ahead of the wait": (
        f"conv_tensor_tma {_TF32} False",
        (_TMA, "wgmma_wait<PENDING>();", "sums[0][0][0] += a, wgmma_wait<PENDING>();"),
    ),
    "an add ahead of the wait for the chunk before": (
        f"conv_tensor_tma {_FP16} True",
        (_TMA, "wgmma_wait<PENDING>();", "wgmma_wait<PENDING>(), sums[0][0][1] += a;"),
    ),
    "an add in the next turn of the loop": (
        f"conv_tensor_tma {_FP16} False",
        (
            _TMA,
            "begin_products<PRECISION>(sums",
            "sums[0][1][0] += a, begin_products<PRECISION>(sums",
        ),
    ),
    "an add in one branch": (
        f"conv_tensor_tma {_FP16} False",
        (
            _TMA,
            "if (i >= PENDING)",
            "if (i == 3) sums[0][1][0] += a, __syncwarp();\n    if (i >= PENDING)",
        ),
    ),
    "factors overwritten": (
        f"conv_tensor_tma {_TF32} False",
        (_TMA, "PRECISION == Precision::FP16 ? 1 : 0", "1"),
    ),
    "no wait at the end": (
        f"conv_tensor_tma {_FP16} False",
        (_TMA, "  wgmma_wait<0>();\n", ""),
    ),
    "steps added up ahead of the wait": (
        f"conv_tensor {_TF32X3}",
        (_TENSOR, _WAIT, "    if constexpr (SPLITS) add_steps();\n" + _WAIT),
    ),
    "an add ahead of the wait of tensor_gemm": (
        f"conv_tensor {_FP16}",
        (_TENSOR, _WAIT, "    sums[0][0][0] += a;\n" + _WAIT),
    ),
    "a wait for the chunk before": (
        f"conv_tensor {_TF32}",
        (_TENSOR, _WAIT, _WAIT.replace("<0>", "<1>")),
    ),
    "an add ahead of the wait of bytes": (
        "conv_integer",
        (_INTEGER, _WAIT, "    sums[0][0][0] += chunk;\n" + _WAIT),
    ),
}


@pytest.mark.parametrize(("kernel", "edit"), DEFECTS.values(), ids=DEFECTS)
def test_a_touch_is_found(kernel: str, edit: tuple[str, str, str], tmp_path: Path) -> None:
    assert ptx.touches(ptx.compiled(FEW[kernel], replaced(tmp_path, *edit)))


def _function(*body: str) -> str:
    return "\n".join((".visible .entry f()", "{", ".reg .f32 %f<9>;", *body, "}", ""))


BEGIN, COMMIT = (
    "{ .reg .pred add;\nwgmma.mma_async.x {%f1,%f2}, %rd1, %rd2, add; }",
    "wgmma.commit_group.x;",
)
OF_REGISTERS = "wgmma.mma_async.x {%f1,%f2}, {%r1,%r2}, %rd2, add;"
WAIT, OTHER = "wgmma.wait_group.x 0;", "wgmma.mma_async.x {%f3,%f4}, %rd1, %rd2, add;"
ADD, END = "add.f32 %f2, %f2, %f8;", "ret;"

FINE = {
    "behind the wait": (BEGIN, COMMIT, WAIT, ADD, END),
    "other registers": (BEGIN, COMMIT, "add.f32 %f22, %f21, %f8;", WAIT, END),
    "products one behind another": (BEGIN, BEGIN, COMMIT, WAIT, ADD, END),
    "all but the newest": (BEGIN, COMMIT, OTHER, COMMIT, "wgmma.wait_group.x 1;", ADD, WAIT, END),
    "a branch that has waited": (*("@%p1 bra $L1;", BEGIN, COMMIT, WAIT, "$L1:", ADD, END),),
    "a loop of its own": (
        *("$L1:", BEGIN, COMMIT, " {", "again: try.x %p1, %rd1;", "@%p1 bra again;", " }"),
        *(WAIT, ADD, "@%p2 bra $L1;", END),
    ),
}

TOUCHED = {
    "ahead of the wait": (BEGIN, COMMIT, ADD, WAIT, END),
    "a read": (BEGIN, COMMIT, "st.shared.f32 [%r9], %f1;", WAIT, END),
    "not committed": (BEGIN, WAIT, ADD, COMMIT, WAIT, END),
    "the newest": (OTHER, COMMIT, BEGIN, COMMIT, "wgmma.wait_group.x 1;", ADD, WAIT, END),
    "by one of two paths": (BEGIN, COMMIT, "@%p1 bra $L1;", WAIT, "$L1:", ADD, WAIT, END),
    "in the next turn": (
        *("$L1:", ADD, BEGIN, COMMIT, "wgmma.wait_group.x 1;", "@%p1 bra $L1;", WAIT, END),
    ),
    "registers of A": (OF_REGISTERS, COMMIT, "ldmatrix.x {%r1,%r5}, [%r7];", WAIT, END),
    "sums as a factor": (BEGIN, COMMIT, "wgmma.mma_async.x {%f3}, {%f1}, %rd1, add;", WAIT, END),
    "a return": (BEGIN, COMMIT, END),
}


@pytest.mark.parametrize("body", FINE.values(), ids=FINE)
def test_what_may_be_done_is_no_touch(body: tuple[str, ...]) -> None:
    assert not ptx.touches(_function(*body))


@pytest.mark.parametrize("body", TOUCHED.values(), ids=TOUCHED)
def test_a_touch_by_any_path_is_found(body: tuple[str, ...]) -> None:
    (found,) = ptx.touches(_function(*body))
    assert found.registers


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("call.uni f;", "not understood in PTX: call"),
        ("@%p1 wgmma.wait_group.x 0;", "not understood in PTX: @%p1 wgmma"),
        ("bra $L7;", r"no label \$L7"),
        ("}", "a brace too many"),
    ],
)
def test_ptx_that_is_not_understood_is_refused(line: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ptx.touches(_function(" " + line, END))
