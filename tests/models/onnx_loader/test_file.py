"""Reading model files: hostile, broken or oversized files get one clear error."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.errors import ModelFileError, UnsupportedModelError
from models.onnx_loader import FileLimits, load_model
from models.onnx_loader.file import NEWEST_OPSET, read_model

EXTERNAL = FileLimits(external_data=True)


def relu(opset: int = 21) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 4, 4])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def with_external_weight(location: str, *, offset: int = 0, length: int = 12) -> onnx.ModelProto:
    """Return x + w, with the three floats of w in the file `location`."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3, 1, 1])
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        weight.external_data.add(key=key, value=str(value))
    model = relu()
    model.graph.node.add().CopyFrom(helper.make_node("Add", ["y", "w"], ["z"]))
    model.graph.output[0].name = "z"
    model.graph.initializer.append(weight)
    return model


def save(path: Path, model: onnx.ModelProto) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def weights_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.array([1, 2, 3], np.float32).tobytes())
    return path


def test_nodes_in_another_order_are_sorted(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,3,4,4] x, bool c) => (float[1,3,4,4] y) {
          y = If(c) <
            then_branch = g1 () => (float[1,3,4,4] p) { p = Neg(b) },
            else_branch = g2 () => (float[1,3,4,4] q) { q = Abs(b) }
          >
          b = Sigmoid(a)
          a = Relu(x)
          d = Tanh(x)
        }"""
    )
    read = read_model(save(tmp_path / "m.onnx", model), FileLimits())
    assert [node.op_type for node in read.graph.node] == ["Relu", "Sigmoid", "If", "Tanh"]


def test_nodes_in_a_circle_are_refused(tmp_path: Path) -> None:
    model = relu()
    model.graph.node[0].input[0] = "z"
    model.graph.node.add().CopyFrom(helper.make_node("Relu", ["y"], ["z"]))
    with pytest.raises(ModelFileError, match="must be topologically sorted"):
        read_model(save(tmp_path / "m.onnx", model), FileLimits())


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 21, NEWEST_OPSET])
def test_every_opset_from_7_to_the_newest_is_read(tmp_path: Path, opset: int) -> None:
    model = load_model(save(tmp_path / "m.onnx", relu(opset)))
    assert [type(node).__name__ for node in model.graph.nodes] == ["Activate"]


@pytest.mark.parametrize("opset", [6, NEWEST_OPSET + 1])
def test_other_opsets_are_refused_with_the_range(tmp_path: Path, opset: int) -> None:
    with pytest.raises(UnsupportedModelError, match=f"opset {opset}; Convoy reads opsets 7 to"):
        read_model(save(tmp_path / "m.onnx", relu(opset)), FileLimits())


def _garbage(path: Path) -> None:
    path.write_bytes(b"this is no model at all" * 10)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _nothing(path: Path) -> None:
    pass


def _truncated(path: Path) -> None:
    model = relu()
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1000, np.float32), "w"))
    path.write_bytes(model.SerializeToString()[:-100])


def _fails_the_checker(path: Path) -> None:
    model = relu()
    model.graph.node[0].input[0] = "nobody_writes_this"
    save(path, model)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (_nothing, "does not exist; give the path of an .onnx file"),
        (_folder, "is a folder, not a file"),
        (_pipe, "is not a regular file"),
        (_device, "is not a regular file"),
        (_empty, "is not an ONNX model"),
        (_garbage, "is not an ONNX model"),
        (_truncated, "truncated"),
        (_fails_the_checker, "is not a valid ONNX model"),
    ],
)
def test_a_file_that_is_no_model_gets_one_clear_line(
    tmp_path: Path, write: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "m.onnx"
    write(path)
    with pytest.raises(ModelFileError) as caught:
        load_model(path)
    assert message in str(caught.value)
    assert "m.onnx" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "kind", "right"),
    [
        (b"", "empty", "download it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:46", "Git LFS", "git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "HTML", "download the file itself"),
        (b"PK\x03\x04\0\0\0\0\0\0archive/data.pkl", "a ZIP archive", "docs/from-pytorch.md"),
        (b"\x80\x02}q\0(X\x05\0\0\0", "a pickle", "docs/from-pytorch.md"),
        (b"\x89HDF\r\n\x1a\n\0\0\0\0", "an HDF5 file", "docs/from-keras.md"),
        (b'\x40\0\0\0\0\0\0\0{"w":{}}', "a safetensors file", "docs/from-pytorch.md"),
        (b"\x1c\0\0\0TFL3\0\0\0\0", "TensorFlow Lite", "tf2onnx.convert --tflite"),
        (b"\x1c\0\0\0ORTM\0\0\0\0", "ONNX Runtime's own format", "the .onnx file"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "gzip", "unpack it"),
    ],
)
def test_a_file_that_people_have_in_place_of_a_model_is_named(
    tmp_path: Path, data: bytes, kind: str, right: str
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=f"m.onnx is not an ONNX model, but .*{kind}") as said:
        read_model(path, FileLimits())
    assert right in str(said.value)


def test_a_file_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", relu())
    size = path.stat().st_size
    read_model(path, FileLimits(max_bytes=size))
    with pytest.raises(ModelFileError, match=rf"has {size} bytes; the limit is {size - 1}"):
        read_model(path, FileLimits(max_bytes=size - 1))


def test_external_data_in_another_folder_needs_the_flag(tmp_path: Path) -> None:
    weights_file(tmp_path / "weights/w.bin")
    path = save(tmp_path / "m.onnx", with_external_weight("weights/w.bin"))
    with pytest.raises(ModelFileError, match="in another folder; pass --external-data"):
        load_model(path)


@pytest.mark.parametrize(
    ("location", "limits"), [("m.onnx.data", FileLimits()), ("weights/w.bin", EXTERNAL)]
)
def test_external_data_inside_the_models_folder_is_read(
    tmp_path: Path, location: str, limits: FileLimits
) -> None:
    weights_file(tmp_path / location)
    path = save(tmp_path / "m.onnx", with_external_weight(location))
    model = load_model(path, limits=limits)
    (weight,) = model.graph.weights.values()
    assert weight.ravel().tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "location", ["../secret.bin", "weights/../../secret.bin", "{parent}/secret.bin", "", "."]
)
def test_external_data_cannot_leave_the_models_folder(tmp_path: Path, location: str) -> None:
    secret = weights_file(tmp_path / "secret.bin")
    (tmp_path / "model/weights").mkdir(parents=True)
    location = location.format(parent=secret.parent)
    path = save(tmp_path / "model/m.onnx", with_external_weight(location))
    with pytest.raises(ModelFileError):
        load_model(path, limits=EXTERNAL)


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("w\0.bin", r"'w\\x00.bin' is refused: the name must be a relative path"),
        ("w.bin\n", r"'w.bin\\n' is refused: the name must be a relative path"),
        ("/dev/zero", "is refused: the name must be a relative path"),
        ("fifo", "'fifo' is not a regular file"),
        ("folder", "'folder' is not a regular file"),
        ("circle", "is refused: .* without symbolic links"),
        ("w" * 5000, "File name too long"),
    ],
)
def test_what_is_no_file_for_external_data_gets_one_line(
    tmp_path: Path, location: str, says: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    path = save(tmp_path / "m.onnx", with_external_weight(location))
    with pytest.raises(ModelFileError, match=says) as caught:
        load_model(path, limits=EXTERNAL)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("key", ["location", "offset", "length"])
@pytest.mark.parametrize("entry", [b"\xff\xfe", b"9" * 5000, b"1" + b"0" * 30, b"-1", b"one", b""])
def test_external_data_that_says_nothing_sensible_gets_one_line(
    tmp_path: Path, key: str, entry: bytes
) -> None:
    weights_file(tmp_path / "w.bin")
    model = with_external_weight("w.bin")
    (place,) = (e for e in model.graph.initializer[0].external_data if e.key == key)
    place.value = "q" * len(entry)  # protobuf would not take what is no text
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString().replace(b"q" * len(entry), entry))
    with pytest.raises(ModelFileError) as caught:
        load_model(path, limits=EXTERNAL)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_external_data_does_not_follow_links(tmp_path: Path) -> None:
    secret = weights_file(tmp_path / "secret.bin")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "link.bin").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    # Not even to a file inside: what it points to may change after it was looked at.
    weights_file(folder / "w.bin")
    (folder / "inside.bin").symlink_to(folder / "w.bin")
    for location in ("link.bin", "up/secret.bin", "inside.bin", "sub/../w.bin"):
        path = save(folder / "m.onnx", with_external_weight(location))
        with pytest.raises(ModelFileError, match="without symbolic links"):
            load_model(path, limits=EXTERNAL)


def test_a_model_behind_a_link_finds_its_external_data(tmp_path: Path) -> None:
    weights_file(tmp_path / "real/w.bin")
    save(tmp_path / "real/m.onnx", with_external_weight("w.bin"))
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    assert load_model(tmp_path / "linked/m.onnx", limits=EXTERNAL).graph.weights


@pytest.mark.parametrize(
    ("offset", "length"), [(4, 12), (0, 16), (1_000_000, 12), (-4, 12), (0, -1), (0, 4)]
)
def test_external_data_of_the_wrong_size_is_refused(
    tmp_path: Path, offset: int, length: int
) -> None:
    weights_file(tmp_path / "w.bin")
    model = with_external_weight("w.bin", offset=offset, length=length)
    with pytest.raises(ModelFileError):
        load_model(save(tmp_path / "m.onnx", model), limits=EXTERNAL)


def test_missing_external_data_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", with_external_weight("gone.bin"))
    with pytest.raises(ModelFileError, match=r"'gone.bin' does not exist"):
        load_model(path, limits=EXTERNAL)


def test_external_data_counts_towards_the_limit(tmp_path: Path) -> None:
    weights_file(tmp_path / "w.bin")
    path = save(tmp_path / "m.onnx", with_external_weight("w.bin"))
    limits = FileLimits(max_bytes=path.stat().st_size + 11, external_data=True)
    with pytest.raises(ModelFileError, match="external data exceed"):
        load_model(path, limits=limits)
