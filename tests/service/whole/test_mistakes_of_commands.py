"""Deliberate mistakes on the command line: the message says what was wrong and what would be
right."""

import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import copy

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models import BUILT_IN_MODEL
from tests.support.command_line import Run
from tests.support.servers.fake_hub import REPOSITORY, fake_hub
from tests.support.servers.several_models import SAMPLES

DIGIT = SAMPLES[3].read_bytes()
FORMATS = "send a JPEG, PNG, WebP, GIF, BMP, TIFF"
SERVE = ("serve", "--port", "0", "--device", "cpu")


def _models(folder: Path) -> None:
    """Write models that users export by mistake."""
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])
    scores = helper.make_tensor_value_info("y", TensorProto.INT64, ["N", 1])
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("ArgMax", ["f"], ["y"], axis=1),
    ]
    save(folder / "numbers.onnx", helper.make_graph(nodes, "numbers", [image], [scores]))
    shape = np.ones(3, np.float32), np.zeros(3, np.float32)
    kept = [onnx.numpy_helper.from_array(shape[name in "bm"], name) for name in "sbmv"]
    normalised = helper.make_node(
        "BatchNormalization", ["x", *"sbmv"], ["n", "m1", "v1"], training_mode=1
    )
    floats = helper.make_tensor_value_info("f", TensorProto.FLOAT, ["N", 3])
    nodes = [
        normalised,
        helper.make_node("GlobalAveragePool", ["n"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
    ]
    save(
        folder / "training.onnx",
        helper.make_graph(nodes, "training", [image], [floats], kept),
    )


def save(path: Path, graph: onnx.GraphProto) -> None:
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


# The command, where {} is a folder of files that are wrong; status, what was wrong, what is right.
COMMANDS: dict[str, tuple[Sequence[str], int, str, str]] = {
    "no such file": ((*SERVE, "no/such.onnx"), 1, "no/such.onnx", "give the path of an .onnx"),
    "a model by nearly its name": ((*SERVE, "sqeezenet1.1"), 1, "sqeezenet1.1", "squeezenet1.1?"),
    "an image as a model": (
        (*SERVE, "{}/cat.jpg"),
        1,
        "is not an ONNX model, but an image",
        "give an .onnx file",
    ),
    "a preset by nearly its name": ((*SERVE, "digits", "--preset", "cafe"), 1, "cafe", "caffe"),
    "3 labels of 10": ((*SERVE, "digits", "--labels", "{}/three.txt"), 1, "3 labels", "10"),
    "no file of labels": (
        (*SERVE, "digits", "--labels", "no.txt"),
        1,
        "no.txt: No such file",
        "the labels",
    ),
    "a port too large": (("serve", "--port", "99999"), 2, "99999", "less than or equal to 65535"),
    "a port with a letter": (("serve", "--port", "80x"), 2, "80x", "whole number"),
    "a device by another name": (("serve", "--device", "gpu"), 2, "gpu", "'cuda'"),
    "no batch": (("serve", "--max-batch", "0"), 2, "0 is not allowed", "1"),
    "a flag by nearly its name": (("serve", "--max-bach", "4"), 2, "--max-bach", "--max-batch"),
    "a command by nearly its name": (("srve",), 2, "'srve'", "'serve'"),
    "a key by nearly its name": ((*SERVE, "digits", "--set", "sise=3"), 1, "sise", "size"),
    "a key without a value": ((*SERVE, "digits", "--set", "size"), 2, "size", "KEY=VALUE"),
    "another size than the file's": (
        (*SERVE, "digits", "--set", "size=300"),
        *(1, "1×300×300", "1×32×32"),
    ),
    "an address of another machine": (
        ("serve", "--port", "0", "--host", "203.0.113.7"),
        *(1, "203.0.113.7", "--host"),
    ),
    "a hub's model that is none": ((*SERVE, "hf://nope"), 1, "hf://nope", "hf://ORG/NAME"),
    "a model to pull by nearly its name": (("pull", "resnet51"), 1, "resnet51", "resnet50"),
    "a key file that is not there": (
        (*SERVE, "--api-key-file", "no/keys"),
        *(2, "no/keys", "--api-key-file"),
    ),
    "a model of class numbers": ((*SERVE, "{}/numbers.onnx"), 1, "class numbers", "scores ="),
    "a model in training mode": ((*SERVE, "{}/training.onnx"), 1, "training mode", ".eval()"),
    "too few photographs": (
        ("quantize", "digits", "{}/photos", "-o", "{}/out.onnx"),
        *(1, "1 ", "at least"),
    ),
    # New ones.
    "an argument too many": ((*SERVE, "digits", "extra"), 2, "'extra'", "convoy serve models/"),
    "a plot that is no PNG": (("inspect", "digits", "--plot", "{}/x.jpg"), 2, "x.jpg", ".png"),
    "no megapixels": (("serve", "--max-megapixels", "-5"), 2, "-5", "--max-megapixels"),
    "a port of gRPC with a letter": (("serve", "--grpc-port", "80x"), 2, "80x", "whole number"),
    "a batch in words": (("serve", "--max-batch", "four"), 2, "four", "whole number"),
    "an image that is not there": (
        ("classify", "digits", "no.png"),
        2,
        "no.png",
        "name images or a folder",
    ),
    "text as an image": (
        ("classify", "digits", "{}/three.txt"),
        1,
        "this is the text 'red'",
        FORMATS,
    ),
    "a folder without images": (("classify", "digits", "{}/empty"), 2, "{}/empty", ".jpeg, .jpg"),
    "photographs that are not there": (
        ("quantize", "digits", "no/photos", "-o", "{}/out.onnx"),
        *(2, "no/photos", "a folder of them"),
    ),
    "a load test of a file": (
        ("loadtest", "digits"),
        1,
        "http://digits",
        "check the address and the server",
    ),
    "a load test of no server": (
        ("loadtest", "http://127.0.0.1:9"),
        1,
        "127.0.0.1:9",
        "check the address and the server",
    ),
    "a level that is none": (("serve", "--log-level", "loud"), 2, "loud", "'debug'"),
    "no file to inspect": (("inspect", "no/such.onnx"), 1, "no/such.onnx", ".onnx"),
    "a GPU that is none": (("inspect", "digits", "--plan", "--gpu", "rtx"), 2, "rtx", "t4, a100"),
    "a default that is not served": (
        (*SERVE, "digits", "--default-model", "cats"),
        *(2, "cats", "digits"),
    ),
    "a name with a blank": (
        (*SERVE, "digits", "--model-name", "my digits"),
        *(1, "my digits", "letters"),
    ),
    "beside without a key": ((*SERVE, "digits", "--beside", "caffe"), 2, "caffe", "KEY=VALUE"),
    "more labels than there are classes": (
        ("classify", "digits", "{}/cat.jpg", "--top-k", "11"),
        *(2, "11", "10"),
    ),
    "a precision by another name": (("serve", "--precision", "half"), 2, "half", "'fp16'"),
    "a folder of no model": ((*SERVE, "{}/empty"), 1, "{}/empty", "NAME/model.onnx"),
    # Newer ones.
    "a pointer of Git LFS": ((*SERVE, "{}/lfs.onnx"), 1, "Git LFS", "git lfs pull"),
    "a checkpoint of PyTorch": ((*SERVE, "{}/model.pt"), 1, "a ZIP archive", "docs/from-pytorch"),
    "an address of a bucket": ((*SERVE, "s3://bucket/m.onnx"), 1, "s3://", "hf://ORG/NAME"),
    "a model without a command": (("digits",), 2, "'digits'", "convoy serve digits"),
    "help as a command": (("help",), 2, "'help'", "'--help'"),
    "a flag for the model": (("serve", "--model", "m.onnx"), 2, "--model;", "convoy serve digits"),
    "a host with its port": (
        ("serve", "--host", "localhost:8000"),
        *(2, "localhost:8000", "without a port"),
    ),
    "a host that is a URL": (("serve", "--hosts", "http://a.org"), 2, "a.org", "without http://"),
    "a share in percent": (("serve", "--agreement", "80%"), 2, "80%", "a number, as 0.8"),
    "a preset by --set that is none": (
        (*SERVE, "digits", "--set", "preset=cafe"),
        *(1, "cafe", "Did you mean caffe?"),
    ),
    "labels by --set that are not there": (
        (*SERVE, "digits", "--set", "labels=no.txt"),
        *(1, "no.txt", "No such file"),
    ),
    "labels in Latin-1": ((*SERVE, "digits", "--labels", "{}/latin.txt"), 1, "latin.txt", "UTF-8"),
    "an option ahead of the command": (
        ("--port", "8001", "serve"),
        *(2, "No such option: --port", "`convoy serve …`"),
    ),
    "an option by its first letter": (("serve", "-p", "80"), 2, "No such option: -p", "--port"),
    "a SavedModel": ((*SERVE, "{}/saved"), 1, "SavedModel", "tf2onnx.convert --saved-model"),
    "a load test of a path": (
        ("loadtest", "http://127.0.0.1:9/v1/classify"),
        *(2, "/v1/classify is not", "http://127.0.0.1:8000"),
    ),
    # Mistakes of a newcomer.
    "a model by nearly its path": (
        (*SERVE, "{}/number.onnx"),
        *(1, "{}/number.onnx does not exist", "did you mean {}/numbers.onnx?"),
    ),
    "a file in no folder": ((*SERVE, "mine.onnx"), 1, "mine.onnx", "give the path of an .onnx"),
    "a folder of models for one": (
        ("classify", "{}/models", "{}/cat.jpg"),
        *(1, "(red, three)", "name one, such as {}/models/red\n"),
    ),
    "labels of another model": (
        ("classify", "{}/models/three", "{}/cat.jpg"),
        *(1, "3 labels in labels.txt, but the model has 10", "--labels, or as labels in {}"),
    ),
    "fewer labels than there are classes": (
        ("classify", "digits", "{}/cat.jpg", "--labels", "{}/three.txt"),
        *(1, "3 labels in {}/three.txt, but", "one line per class"),
    ),
    "a preset for colours": (
        ("classify", "{}/models/red", "{}/cat.jpg", "--preset", "unit"),
        *(1, "3×32×32 (nchw, rgb), but the model takes 1×", "grey images: digits, grey-"),
    ),
    "one photograph": (
        ("quantize", "digits", "{}/photos/3.jpg", "-o", "{}/out.onnx"),
        *(1, "1 photograph is too few", "at least 20"),
    ),
    "a flag of uvicorn": (("serve", "--workers", "4"), 2, "--workers", "all cores"),
    "a flag of Triton": (("serve", "--model-repository=models"), 2, "--model-r", "omit the flag"),
    "a file of settings": (("serve", "--config", "c.toml"), 2, "--config", "CONVOY_PORT"),
    "a time without a unit": (
        ("loadtest", "http://127.0.0.1:9", "--p99", "50"),
        *(2, "50 has no unit", "50ms"),
    ),
}

VARIABLES: dict[str, tuple[str, str, str]] = {
    "CONVOY_MAXBATCH": ("4", "CONVOY_MAXBATCH is not a setting", "CONVOY_MAX_BATCH"),
    "CONVOY_MAX_BATCH": ("four", "four", "whole number"),
    "HF_ENDPOINT": ("127.0.0.1:1", "HF_ENDPOINT", "https://example.org"),
    "CONVOY_LOG_FORMAT": ("jsn", "jsn", "'json'"),
    "CONVOY_WATCH": ("on-change", "on-change", "true or false"),
}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of files that users pass by mistake."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "cat.jpg").write_bytes(DIGIT)
    (folder / "three.txt").write_text("red\ngreen\nblue\n")
    (folder / "latin.txt").write_bytes("café\n".encode("latin-1"))
    (folder / "lfs.onnx").write_text("version https://git-lfs.github.com/spec/v1\n")
    (folder / "model.pt").write_bytes(b"PK\x03\x04" + bytes(26) + b"archive/data.pkl")
    (folder / "photos").mkdir()
    (folder / "photos/3.jpg").write_bytes(DIGIT)
    (folder / "empty").mkdir()
    for name in ("red", "three"):
        (folder / "models" / name).mkdir(parents=True)
        copy(BUILT_IN_MODEL, folder / "models" / name / "model.onnx")
    copy(folder / "three.txt", folder / "models/three/labels.txt")
    (folder / "saved/variables").mkdir(parents=True)
    (folder / "saved/saved_model.pb").touch()
    _models(folder)
    return folder


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_about_a_wrong_command_says_what_would_be_right(
    convoy: Run, wrong: Path, name: str
) -> None:
    command, status, *words = COMMANDS[name]
    ended, out, error = convoy(*(word.replace("{}", str(wrong)) for word in command))
    assert (ended, out) == (status, "")
    assert "Error: " in error
    for word in words:
        assert word.replace("{}", str(wrong)) in error


@pytest.mark.parametrize("name", VARIABLES)
def test_the_line_about_a_wrong_variable_says_what_would_be_right(
    convoy: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    value, *words = VARIABLES[name]
    monkeypatch.setenv(name, value)
    status, out, error = convoy("serve", "hf://maker/flowers", "--port", "0")
    assert (status, out) == (2, "")
    for word in words:
        assert word in error


def test_a_port_that_is_taken_is_named_with_the_flag(convoy: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, _, error = convoy("serve", "--port", port)
    assert status == 1
    assert f"port {port}" in error
    assert "--port" in error


def test_a_hub_that_wants_a_token_or_is_not_there_is_named(
    convoy: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CONVOY_CACHE", str(tmp_path))
    with fake_hub({"model.onnx": BUILT_IN_MODEL.read_bytes()}) as hub:
        hub.token = "hf_secret"
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        status, _, error = convoy("serve", f"hf://{REPOSITORY}", "--port", "0")
    assert status == 1
    assert "401" in error
    assert "HF_TOKEN" in error
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    status, _, error = convoy("serve", f"hf://{REPOSITORY}", "--port", "0")
    assert status == 1
    assert "127.0.0.1:9" in error
    assert "HF_ENDPOINT" in error


def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    convoy: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "service.grpc.port", raising=False)
    status, _, error = convoy("serve", "digits", "--port", "0", "--grpc-port", "0")
    assert status == 2
    assert "grpc" in error
    assert "pip install" in error
