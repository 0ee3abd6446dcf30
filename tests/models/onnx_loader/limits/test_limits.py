"""Hostile models are refused with one line that names the bound, in bounded time and memory."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from onnx import ModelProto

from models import load_classifier
from models.errors import ModelFileError, UnsupportedModelError
from models.onnx_loader import load_model
from models.onnx_loader.limits import bounds, census
from models.onnx_loader.limits.census import check_census
from models.onnx_loader.limits.wire import check_wire
from tests.support.models.hostile_cases import BROKEN, MEASURED, UNSUPPORTED, Build
from tests.support.models.hostile_models import (
    CONV,
    call,
    chain,
    deep_calls,
    doubled_pieces,
    doubling,
    flat,
    function,
    message,
    model,
    nested_ifs,
    node,
    pools,
    read_by,
    relu,
    reshaped,
    through_pooling,
    with_weight,
    written,
)
from tests.support.models.measured_load import measure
from tests.support.models.slowness import idle_core

# What a refusal may take of an idle core's time.
SECONDS = 10


def save(folder: Path, build: Build) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(written(build()))
    return path


def assert_refused(path: Path, error: type[Exception], says: str) -> None:
    with idle_core(process_time) as spent, pytest.raises(error, match=says) as caught:
        load_classifier(path)
    assert spent.seconds < SECONDS
    said = str(caught.value)
    assert type(caught.value) is error
    assert len(said) < 1000
    # What Convoy does not run, and what contradicts itself, are lists, one operator a line.
    lists = "the model has parts that Convoy does not run:\n", "the model contradicts itself:\n"
    assert "\n" not in said or said.startswith(lists)
    assert said.replace("\n", "").isprintable()


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_would_be_too_much_is_refused(tmp_path: Path, case: str) -> None:
    says, build = UNSUPPORTED[case]
    assert_refused(save(tmp_path, build), UnsupportedModelError, says)


@pytest.mark.parametrize("case", BROKEN)
def test_what_no_model_says_is_refused(tmp_path: Path, case: str) -> None:
    says, build = BROKEN[case]
    assert_refused(save(tmp_path, build), ModelFileError, says)


@pytest.mark.parametrize("case", MEASURED)
def test_what_a_hostile_model_takes_is_bounded(tmp_path: Path, case: str) -> None:
    """The memory that a file needs: some copies of it, plus a small constant."""
    path = save(tmp_path, {**UNSUPPORTED, **BROKEN}[case][1])
    measured = measure(path)
    assert measured.error in ("ModelFileError", "UnsupportedModelError")
    assert measured.seconds < SECONDS
    assert measured.mebibytes < 400 + 4 * path.stat().st_size / 2**20


# Models of any size, the bound on that size, and what is said of a size above.
AT_THE_BOUND: dict[str, tuple[Callable[[int], ModelProto | bytes], int, str]] = {
    "calls": (deep_calls, bounds.CALL_DEPTH_LIMIT, "deep, which is the limit"),
    "subgraphs": (nested_ifs, bounds.SUBGRAPH_DEPTH_LIMIT, "deep, which is the limit"),
    "readers": (read_by, bounds.READER_LIMIT, "is read by 129 nodes"),
    "moves": (lambda n: pools(n - 1), bounds.MOVES_LIMIT, "the last of 129 nodes in a row"),
    "pieces": (doubled_pieces, bounds.PIECES_LIMIT, "joins 513 values"),
    "ports": (
        lambda n: model([node("Concat", "x " * n, "y", axis=1)]),
        bounds.PORT_LIMIT,
        "513 inputs or outputs",
    ),
    "axes": (reshaped, bounds.RANK_LIMIT, "17 axes"),
    "entries": (flat, bounds.FLAT_LIMIT, "1,048,577 entries"),
    "window": (through_pooling, bounds.WINDOW_LIMIT, "kernel_shape of 16,385"),
    "numbers": (
        lambda n: relu(1, 1, 2**14, n),
        bounds.ELEMENT_LIMIT // 2**14,
        "numbers per image",
    ),
    "batch": (lambda n: relu(n, 3, 8, 8), bounds.BATCH_LIMIT, "is a batch of 65,537 images"),
    "name": (
        lambda n: model([node("Relu", "x", "y", name="n" * n)]),
        bounds.NAME_LIMIT,
        "has 1,025 bytes",
    ),
}


VECTOR = (1, 3, 1, 1)  # a classifier gives one score per class


@pytest.mark.parametrize("bound", AT_THE_BOUND)
def test_the_bound_itself_is_allowed(tmp_path: Path, bound: str) -> None:
    build, limit, says = AT_THE_BOUND[bound]
    assert load_model(save(tmp_path, lambda: build(limit))).graph.nodes
    with pytest.raises((ModelFileError, UnsupportedModelError), match=says):
        load_model(save(tmp_path, lambda: build(limit + 1)))


def test_fields_and_numbers_are_counted_exactly() -> None:
    unknown = b"\xfa\x7f\x00"
    check_wire(unknown * bounds.FIELD_LIMIT)
    with pytest.raises(ModelFileError, match="fields"):
        check_wire(unknown * (bounds.FIELD_LIMIT + 1))

    def sizes(n: int) -> bytes:  # two bytes each
        return message(7, message(5, message(1, b"\x81\x01" * n)))

    check_wire(sizes(bounds.INTEGER_LIMIT))
    with pytest.raises(ModelFileError, match="integers, which is the limit"):
        check_wire(sizes(bounds.INTEGER_LIMIT + 1))


def with_edges(n: int) -> ModelProto:
    """Return a model whose nodes and graph read and write n names."""
    whole, rest = divmod(n - 2, 512)  # its input and its output are two of them
    sizes = [512] * whole + [rest] * (rest > 0)
    return model([node("Concat", "x " * (size - 1), f"c{i}") for i, size in enumerate(sizes)])


CENSUS_AT_THE_BOUND: dict[str, tuple[Build, Build]] = {
    "nodes": (
        lambda: model(chain("Relu", bounds.NODE_LIMIT)),
        lambda: model(chain("Relu", bounds.NODE_LIMIT + 1)),
    ),
    "edges": (lambda: with_edges(bounds.EDGE_LIMIT), lambda: with_edges(bounds.EDGE_LIMIT + 1)),
    "a tensor": (
        lambda: with_weight([bounds.ELEMENT_LIMIT]),
        lambda: with_weight([bounds.ELEMENT_LIMIT + 1]),
    ),
}


@pytest.mark.parametrize("bound", CENSUS_AT_THE_BOUND)
def test_the_census_takes_as_many_as_is_said(bound: str) -> None:
    most, one_more = (build() for build in CENSUS_AT_THE_BOUND[bound])
    assert isinstance(most, ModelProto)
    assert isinstance(one_more, ModelProto)
    check_census(most)
    with pytest.raises(UnsupportedModelError, match="at most"):
        check_census(one_more)


def test_what_inlining_writes_is_counted_with_the_attributes_of_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    body = [node("Relu", "a", "c"), node("Relu", "c", "d"), node("Relu", "d", "b")]

    def calling(note: str) -> ModelProto:
        return model([call("f", "x", "y", note=note)], functions=[function("f", body)])

    least = next(n for n in range(1000) if is_taken(calling("n"), n, monkeypatch))
    long = calling("n" * 101)  # a hundred bytes more for each node of the function
    assert [is_taken(long, least + n, monkeypatch) for n in (299, 300)] == [False, True]


def is_taken(made: ModelProto, inlined: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(census, "INLINED_BYTES_LIMIT", inlined - made.ByteSize())
    with suppress(UnsupportedModelError):
        check_census(made)
        return True
    return False


def test_functions_that_call_each_other_are_inlined(tmp_path: Path) -> None:
    loaded = load_model(save(tmp_path, lambda: doubling(12)))
    assert len(loaded.graph.nodes) == 1  # 2048 times Relu is Relu


def test_functions_that_nobody_calls_cost_nothing(tmp_path: Path) -> None:
    assert load_model(save(tmp_path, lambda: doubling(60, used=False))).graph.nodes


def test_hostile_names_do_not_hide_which_operators_are_missing(tmp_path: Path) -> None:
    nodes = [node("Sin", f"{'x' if i == 0 else f'v{i}'}", f"v{i + 1}") for i in range(200)]
    with pytest.raises(UnsupportedModelError, match=r"Sin: .* \(in v1, .*, \.\.\.; 200 nodes\)"):
        load_model(save(tmp_path, lambda: model([*nodes, node("Relu", "v200", "y")])))


@pytest.mark.slow
def test_a_network_of_the_most_nodes_loads_in_seconds(tmp_path: Path) -> None:
    path = save(tmp_path, lambda: model(chain("Conv", bounds.NODE_LIMIT, "w"), CONV, shape=VECTOR))
    measured = measure(path)
    assert not measured.message
    assert measured.seconds < 2 * SECONDS
    assert measured.mebibytes < 200


@pytest.mark.slow
def test_a_chain_of_constants_is_folded_in_seconds(tmp_path: Path) -> None:
    """onnxscript records for each constant all values from which it was folded: 9,999²/2 names."""
    names = ["k", *(f"n{i}" for i in range(bounds.NODE_LIMIT - 1))]
    nodes = [node("Add", f"{names[i]} k", names[i + 1]) for i in range(len(names) - 1)]
    weights = {"k": np.ones((1, 3, 1, 1), np.float32)}
    path = save(
        tmp_path, lambda: model([*nodes, node("Add", f"x {names[-1]}", "y")], weights, shape=VECTOR)
    )
    measured = measure(path)
    assert not measured.message
    assert measured.seconds < 2 * SECONDS
    assert measured.mebibytes < 100
