"""A real server with models that are broken in many ways. Answers state the fault, but not the
server's folders."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
from onnx import numpy_helper
from tritonclient.utils import InferenceServerException

from models import BUILT_IN_MODEL
from tests.support import PATIENCE_S, ROOT
from tests.support.servers.forked import KEEPING_SERVER
from tests.support.servers.several_models import SAMPLES, announced, save_channels
from tests.support.service.triton import files_input

ADDRESSES = r"127\.0\.0\.1:\d+"
DIGIT = SAMPLES[3].read_bytes()


def _with(name: str, text: str) -> Callable[[Path], None]:
    """Write a file next to the built-in model."""

    def make(place: Path) -> None:
        shutil.copy(BUILT_IN_MODEL, place / "model.onnx")
        (place / name).write_text(text)

    return make


def _text(place: Path) -> None:
    (place / "model.onnx").write_text("this is no model")


def _truncated(place: Path) -> None:
    (place / "model.onnx").write_bytes(BUILT_IN_MODEL.read_bytes()[:-1000])


def _two(place: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        shutil.copy(BUILT_IN_MODEL, place / name)


def _version(place: Path) -> None:
    (place / "2").mkdir()
    _text(place / "2")


def _folder(place: Path) -> None:
    (place / "model.onnx").mkdir()


def _without_data(place: Path) -> None:
    save_channels(place / "model.onnx")
    model = onnx.load(place / "model.onnx")
    options: Any = {"save_as_external_data": True, "location": "weights.data", "size_threshold": 0}
    onnx.save(model, place / "model.onnx", **options)
    (place / "weights.data").unlink()


def _weights(value: float) -> Callable[[Path], None]:
    """Return a function that writes a network whose weights are all `value`."""

    def make(place: Path) -> None:
        save_channels(place / "model.onnx")
        model = onnx.load(place / "model.onnx")
        weights = np.full((3, 3, 1, 1), value, np.float32)
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
        onnx.save(model, place / "model.onnx")
        (place / "model.toml").write_text('output = "logits"\n')

    return make


# How each is broken, and words of the reason that clients read.
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "text": (_text, "models/text/model.onnx is not an ONNX model"),
    "truncated": (_truncated, "models/truncated/model.onnx is not an ONNX model, or is truncated"),
    "empty": (lambda _: None, "models/empty has neither model.onnx"),
    "two": (_two, "models/two may be a.onnx or b.onnx"),
    "version": (_version, "models/version/2/model.onnx"),
    "folder": (_folder, "models/folder"),
    "without-data": (_without_data, "'weights.data' does not exist"),
    "labels": (_with("labels.txt", "one\n\ntwo\n"), "labels.txt"),
    "few-labels": (_with("labels.txt", "one\ntwo\n"), "labels.txt"),
    "json": (_with("config.json", "{"), "config.json"),
    "toml": (_with("model.toml", "preset ="), "model.toml"),
    "key": (_with("model.toml", 'presett = "caffe"'), "presett"),
    "pbtxt": (_with("config.pbtxt", "}{"), "config.pbtxt"),
    "paddle": (_with("inference.yml", "a: [\n"), "inference.yml"),
    "not-numbers": (_weights(np.nan), "9 of its 9 numbers are NaN"),
    "too-large": (_weights(3e38), "not finite"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of broken models. Its path has a space."""
    folder = tmp_path_factory.mktemp("kept here") / "some place" / "models"
    for name, (make, _) in BROKEN.items():
        (folder / name).mkdir(parents=True)
        make(folder / name)
    (folder / "digits").mkdir()
    _with("model.toml", 'preset = "digits"\n')(folder / "digits")
    return folder


@pytest.fixture(scope="module")
def addresses(folder: Path) -> Iterator[Sequence[str]]:
    """Yield the addresses of HTTP and gRPC."""
    options = ["--grpc-port", "0", "--repository-api", "--device", "cpu", "--max-batch", "1"]
    with announced(folder, *options, "--no-access-log", program=KEEPING_SERVER) as line:
        yield re.findall(ADDRESSES, line)[:2]


def _names_no_folder(answer: str, folder: Path) -> None:
    kept = folder.parent.parent
    for place in (str(kept), kept.name, folder.parent.name, str(ROOT), sys.prefix):
        assert place not in answer
    assert str(Path.home()) + "/" not in answer


def _by_http(client: httpx.Client, name: str) -> Iterator[str]:
    """Yield the answers of all paths that concern a model."""
    body = (
        b'{"inputs":[{"name":"image","datatype":"BYTES","shape":[1],"data":["aaaa"]}],'
        b'"outputs":[{"name":"logits"}]}'
    )
    for path in ("", "/config", "/stats", "/ready", "/versions/2", "/versions/1/stats"):
        yield client.get(f"/v2/models/{name}{path}").text
    yield client.post(f"/v2/models/{name}/infer", content=body).text
    for path in ("classify", "classify?explain=1", "embeddings", "pixels"):
        yield client.post(f"/v1/models/{name}/{path}", content=DIGIT).text
    yield client.get(f"/v1/models/{name}/classify").text
    yield client.post(f"/v2/repository/models/{name}/load").text


def _by_grpc(client: triton_grpc.InferenceServerClient, name: str) -> Iterator[str]:
    calls: Sequence[Callable[[], Any]] = (
        lambda: client.get_model_metadata(name),
        lambda: client.get_model_config(name),
        lambda: client.get_inference_statistics(name),
        lambda: client.is_model_ready(name),
        lambda: client.infer(name, [files_input(DIGIT).by("grpc")]).get_response(),
        lambda: client.load_model(name),
    )
    for call in calls:
        try:
            yield str(call())
        except InferenceServerException as error:
            yield str(error)


@pytest.mark.parametrize("name", BROKEN)
def test_every_answer_about_a_broken_model_says_why_without_the_servers_folders(
    addresses: Sequence[str], folder: Path, name: str
) -> None:
    http, grpc = addresses
    says = BROKEN[name][1]
    with (
        httpx.Client(base_url=f"http://{http}", timeout=PATIENCE_S) as client,
        triton_grpc.InferenceServerClient(grpc) as other,
    ):
        every = [*_by_http(client, name), *_by_grpc(other, name)]
        models = {each["name"]: each for each in client.get("/v1/models").json()["models"]}
        index = client.post("/v2/repository/index").json()
        every += [str(models), str(index), str(other.get_model_repository_index())]
        every += [client.get("/metrics").text, str(other.get_inference_statistics())]
    for answer in every:
        _names_no_folder(answer, folder)
    reasons = [models[name]["error"], next(e["reason"] for e in index if e["name"] == name)]
    assert all(says in reason for reason in reasons), reasons
    assert sum(says in answer for answer in every) >= 6, every


def test_a_version_that_is_refused_is_named_without_the_servers_folders(
    addresses: Sequence[str], folder: Path
) -> None:
    http, grpc = addresses
    (folder / "digits/model.onnx").write_text("this is no model")
    says = "version 2 of digits is not served: models/digits/model.onnx is not an ONNX model"
    with (
        httpx.Client(base_url=f"http://{http}", timeout=PATIENCE_S) as client,
        triton_grpc.InferenceServerClient(grpc) as other,
    ):
        refused = client.post("/v2/repository/models/digits/load")
        assert refused.status_code == 422
        with pytest.raises(InferenceServerException, match=says) as error:
            other.load_model("digits")
        index = client.post("/v2/repository/index").json()
        every = [*_by_http(client, "digits"), refused.text, str(error.value), str(index)]
        every += list(_by_grpc(other, "digits"))
        assert says in refused.json()["error"]
        assert says in next(each["reason"] for each in index if each["name"] == "digits")
    for answer in every:
        _names_no_folder(answer, folder)
