"""Lists requests that tests send to Convoy. Run as a program, this module sends them to Triton and
records Triton's answers.

    python -m tests.support.service.beside_triton    # writes triton_2_51.json beside the test

The program installs the package `nvidia-pytriton`, which contains the original tritonserver 2.51
with its Python backend. The backend's model computes the same as the ONNX file of the test.
"""

import base64
import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

import httpx
import numpy as np
from onnx import TensorProto, helper, save_model

from benchmarks.environments import environment
from tests.support import PATIENCE_S, ROOT

TRITON = ("nvidia-pytriton==0.7.0",)
RECORDED = ROOT / "tests/service/api/v2/triton_2_51.json"

MODEL, SHORT = "channels", "short"

_CONFIG = """
{backend}
max_batch_size: 8
input [{{ name: "x" data_type: TYPE_FP32 {layout}dims: [3, 4, 6] }}]
output [{{ name: "amount" data_type: TYPE_FP32 dims: [3] label_filename: "labels.txt" }}]
"""
_ONNX = 'platform: "onnxruntime_onnx"'
_PYTHON = 'backend: "python"'

# Triton counts inside its backend, which takes the mean of each channel, as the ONNX file does.
_MODEL_PY = """
import numpy as np
import triton_python_backend_utils as triton

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = triton.get_input_tensor_by_name(request, "x").as_numpy()
            mean = x.mean(axis=(2, 3), dtype=np.float32)
            answers.append(triton.InferenceResponse([triton.Tensor("amount", mean)]))
        return answers
"""

_LABELS = {MODEL: "red\ngreen\nblue\n", SHORT: "red\ngreen\n"}


def make_repository(folder: Path, *, for_triton: bool = False) -> Path:
    """Create a repository that both Triton and Convoy can serve. It has two models. The label file
    of one model is too short."""
    for name, labels in _LABELS.items():
        place = folder / name
        (place / "1").mkdir(parents=True)
        backend = _PYTHON if for_triton else _ONNX
        # Triton allows FORMAT_NCHW only if it is the model's own layout.
        config = _CONFIG.format(backend=backend, layout="format: FORMAT_NCHW ")
        (place / "config.pbtxt").write_text(config)
        (place / "labels.txt").write_text(labels)
        if for_triton:
            (place / "1/model.py").write_text(_MODEL_PY)
        else:
            _save(place / "1/model.onnx")
    return folder


def _save(path: Path) -> None:
    """Save a network that returns the mean of each channel of each image."""
    pooled = helper.make_node("GlobalAveragePool", ["x"], ["m"])
    graph = helper.make_graph(
        [pooled, helper.make_node("Flatten", ["m"], ["amount"])],
        "channels",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 4, 6])],
        [helper.make_tensor_value_info("amount", TensorProto.FLOAT, ["N", 3])],
    )
    opset = helper.make_opsetid("", 17)
    save_model(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


# --- the requests ---------------------------------------------------------------------------------


class Sent(NamedTuple):
    """Holds one request."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = {}


_INFER = f"/v2/models/{MODEL}/infer"
_LENGTH = "Inference-Header-Content-Length"

# The means are exact in binary, so sums in different orders are equal.
_ONE = np.repeat(np.array([1.5, -2, 3], "<f4"), 24)
_TWO = np.concatenate([_ONE, np.repeat(np.array([0.25, 8, 8], "<f4"), 24)])
_NUMBERS = _ONE.tolist()


def _input(**changed: Any) -> dict[str, Any]:
    """Return the JSON of an input of one image, with some fields changed. A field that is set to
    None is removed."""
    usual = {"name": "x", "datatype": "FP32", "shape": [1, 3, 4, 6], "data": _NUMBERS}
    return {key: value for key, value in (usual | changed).items() if value is not None}


def _json(*inputs: dict[str, Any], path: str = _INFER, **fields: Any) -> Sent:
    """Return a request that is entirely JSON. If no `inputs` are given, it has the usual input of
    one image."""
    return Sent("POST", path, json.dumps({"inputs": inputs or [_input()], **fields}).encode())


def _wants(path: str = _INFER, given: Sequence[dict[str, Any]] = (), **output: Any) -> Sent:
    """Return a request that names its output. The output has these parameters."""
    return _json(*given, path=path, outputs=[{"name": "amount", "parameters": output}])


def _binary(data: bytes = _ONE.tobytes(), n: int = 1, claimed: int | None = None) -> Sent:
    """Return a request in which the tensor follows the JSON as bytes."""
    parameters = {"binary_data_size": len(data) if claimed is None else claimed}
    given = _input(shape=[n, 3, 4, 6], data=None, parameters=parameters)
    return _headed(json.dumps({"inputs": [given]}).encode(), data)


def _headed(head: bytes, data: bytes, length: str | None = None, **headers: str) -> Sent:
    headers = {_LENGTH: str(len(head)) if length is None else length} | headers
    return Sent("POST", _INFER, head + data, headers)


def _text(body: bytes | str, **headers: str) -> Sent:
    return Sent("POST", _INFER, body.encode() if isinstance(body, str) else body, headers)


def _coded(coding: str, press: Callable[[bytes], bytes]) -> Sent:
    return _json()._replace(body=press(_json().body), headers={"Content-Encoding": coding})


def _get(path: str) -> Sent:
    return Sent("GET", path)


_OUTPUT = {"name": "amount"}
_PAIR = _input(shape=[2, 3, 4, 6], data=_TWO.tolist())
_HEAD = json.dumps({"inputs": [_input(data=None, parameters={"binary_data_size": 288})]}).encode()

REQUESTS: dict[str, Sent] = {
    # Tensors in JSON.
    "a flat list": _json(),
    "nested as the shape": _json(_input(data=_ONE.reshape(1, 3, 4, 6).tolist())),
    "a list for each image": _json(_input(data=[_NUMBERS])),
    "two images": _json(_PAIR),
    "whole numbers": _json(_input(data=[2] * 72)),
    "numbers with exponents": _text(json.dumps({"inputs": [_input(data=[1e-3] * 72)]})),
    "white space": _text(json.dumps({"inputs": [_input()]}, indent=4)),
    "an id": _json(id="seven"),
    "an id of no Latin letters": _json(id="кот"),
    "a field that is not known": _json(colour="red"),
    "a parameter that is not known": _json(parameters={"colour": "red"}),
    "a parameter of the input that is not known": _json(_input(parameters={"colour": "red"})),
    "a priority": _json(parameters={"priority": 1}),
    "no timeout": _json(parameters={"timeout": 0}),
    "another type of body": _text(_json().body, **{"Content-Type": "text/plain"}),
    "a compressed body": _coded("gzip", gzip.compress),
    "a deflated body": _coded("deflate", zlib.compress),
    "an answer that may be compressed": _json()._replace(headers={"Accept-Encoding": "gzip"}),
    "a version in the path": _json(path=f"/v2/models/{MODEL}/versions/1/infer"),
    "NaN": _text(json.dumps({"inputs": [_input(data=[float("nan"), *_NUMBERS[1:]])]})),
    # Outputs.
    "an output by name": _json(outputs=[_OUTPUT]),
    "no outputs listed": _json(outputs=[]),
    "a binary output": _wants(binary_data=True),
    "an output in JSON": _wants(binary_data=False),
    "all outputs in binary": _json(parameters={"binary_data_output": True}),
    "all in binary, and one by name": _json(
        outputs=[_OUTPUT], parameters={"binary_data_output": True}
    ),
    "the likeliest class": _wants(classification=1),
    "two classes of two images": _wants(given=[_PAIR], classification=2),
    "more classes than there are": _wants(classification=9),
    "no classes": _wants(classification=0),
    "classes that are as likely": _wants(given=[_input(data=[1] * 72)], classification=3),
    "classes in binary": _wants(classification=2, binary_data=True),
    "classes, and all in binary": _json(
        outputs=[{**_OUTPUT, "parameters": {"classification": 1}}],
        parameters={"binary_data_output": True},
    ),
    "classes without labels": _wants(f"/v2/models/{SHORT}/infer", classification=3),
    "an output twice": _json(outputs=[_OUTPUT, _OUTPUT]),
    # Tensors in binary.
    "a tensor in binary": _binary(),
    "two images in binary": _binary(_TWO.tobytes(), 2),
    "numbers that are not finite": _binary(np.full(72, np.inf, "<f4").tobytes()),
    "a compressed body with a tensor in binary": _binary()._replace(
        body=gzip.compress(_binary().body),
        headers={**_binary().headers, "Content-Encoding": "gzip"},
    ),
    "a raw body": _headed(b"", _ONE.tobytes(), "0"),
    "a raw body of another length": _headed(b"", _ONE.tobytes()[:-4], "0"),
    "a tensor in binary too short": _binary(_ONE.tobytes()[:-4]),
    "fewer bytes than are claimed": _binary(claimed=292),
    "more bytes than are claimed": _binary(claimed=284),
    "a header longer than the body": _headed(_HEAD, b"", str(len(_HEAD) + 1)),
    "a length that is no number": _headed(_HEAD, _ONE.tobytes(), "many"),
    "a tensor in binary and in JSON": _headed(
        json.dumps({"inputs": [_input(parameters={"binary_data_size": 288})]}).encode(),
        _ONE.tobytes(),
    ),
    # What is refused.
    "a model that is not there": _json(path="/v2/models/no/infer"),
    "a version that is not there": _json(path=f"/v2/models/{MODEL}/versions/7/infer"),
    "an input by another name": _json(_input(name="y")),
    "no input": Sent("POST", _INFER, b'{"inputs": []}'),
    "inputs left out": Sent("POST", _INFER, b"{}"),
    "an input twice": _json(_input(), _input()),
    "an output by another name": _json(outputs=[{"name": "scores"}]),
    "another type": _json(_input(datatype="INT32", data=[1] * 72)),
    "a type in small letters": _json(_input(datatype="fp32")),
    "another shape": _json(_input(shape=[1, 3, 6, 4])),
    "no axis of the batch": _json(_input(shape=[3, 4, 6])),
    "no image": _json(_input(shape=[0, 3, 4, 6], data=[])),
    "a negative side": _json(_input(shape=[-1, 3, 4, 6])),
    "more images than a batch has": _json(_input(shape=[9, 3, 4, 6], data=_NUMBERS * 9)),
    "too few numbers": _json(_input(data=_NUMBERS[:-1])),
    "too many numbers": _json(_input(data=[*_NUMBERS, 1])),
    "no data": _json(_input(data=None)),
    "text for numbers": _json(_input(data=["1"] * 72)),
    "null for numbers": _json(_input(data=[None] * 72)),
    "JSON that ends early": _text(_json().body[:-2]),
    "JSON with a comma too many": _text(_json().body[:-1] + b",}"),
    "a list for the request": _text(b"[1, 2]"),
    "an empty body": _text(b""),
    "a region that is not there": _json(
        _input(
            data=None,
            parameters={"shared_memory_region": "no", "shared_memory_byte_size": 288},
        )
    ),
    "another method": _get(_INFER),
    # What is asked beside inferences.
    "the metadata": _get(f"/v2/models/{MODEL}"),
    "the metadata of a version": _get(f"/v2/models/{MODEL}/versions/1"),
    "the configuration": _get(f"/v2/models/{MODEL}/config"),
    "the metadata of a model that is not there": _get("/v2/models/no"),
    "whether a model is ready": _get(f"/v2/models/{MODEL}/ready"),
    "whether the server is ready": _get("/v2/health/ready"),
    "whether the server lives": _get("/v2/health/live"),
    "the index": Sent("POST", "/v2/repository/index"),
    # After all that was refused above.
    "the statistics": _get(f"/v2/models/{MODEL}/stats"),
    "a timeout of a microsecond": _json(parameters={"timeout": 1}),
}


# --- what of an answer a client reads -------------------------------------------------------------


def seen(answer: httpx.Response, path: str) -> dict[str, Any]:
    """Return the status of an answer. If the answer is not an error, also return its parts that
    clients read."""
    found: dict[str, Any] = {"status": answer.status_code}
    if answer.status_code != 200 or path.endswith(("/ready", "/live")):
        return found
    length = answer.headers.get(_LENGTH.lower())
    head = answer.content if length is None else answer.content[: int(length)]
    value = json.loads(head)
    if path.endswith("/infer"):
        binary = b"" if length is None else answer.content[int(length) :]
        return found | {"json": value, "binary": base64.b64encode(binary).decode()}
    return found | {"json": _of_others(value, path)}


def _of_others(value: Any, path: str) -> Any:
    if path.endswith("/index"):
        return sorted([each["name"], each["version"], each["state"]] for each in value)
    if path.endswith("/stats"):
        (model,) = value["model_stats"]
        return {"name": model["name"], "failures": model["inference_stats"]["fail"]["count"]}
    if path.endswith("/config"):
        tensors = [
            [{key: each[key] for key in keys} for each in value[side]]
            for side, keys in (
                ("input", ("name", "data_type", "format", "dims")),
                ("output", ("name", "data_type", "dims", "label_filename")),
            )
        ]
        return [value["name"], value["max_batch_size"], *tensors]
    return {key: value[key] for key in ("name", "versions", "inputs", "outputs")}


def ask(address: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Send every request to a server. Yield the name of each request, and the relevant parts of its
    answer."""
    with httpx.Client(base_url=f"http://{address}", timeout=PATIENCE_S) as client:
        for name, (method, path, body, headers) in REQUESTS.items():
            answer = client.request(method, path, content=body, headers=headers)
            yield name, seen(answer, path)


# --- recording ------------------------------------------------------------------------------------


@contextmanager
def _triton() -> Iterator[str]:
    """Run a tritonserver with the models, and yield its address."""
    installed = environment("nvidia-pytriton", TRITON, ROOT / ".cache" / "clients", print)
    (packages,) = installed.folder.glob("lib/*/site-packages")
    triton = packages / "pytriton" / "tritonserver"
    with tempfile.TemporaryDirectory() as temporary, socket.create_server(("127.0.0.1", 0)) as free:
        folder, port = Path(temporary), free.getsockname()[1]
        make_repository(folder / "models", for_triton=True)
        shutil.copytree(triton / "backends", folder / "backends")
        stub = triton / "python_backend_stubs" / "{}.{}".format(*sys.version_info)
        shutil.copy(stub / "triton_python_backend_stub", folder / "backends/python")
        _give_numpy(folder / "models", packages)
        free.close()
        options = {
            "model-repository": folder / "models",
            "backend-directory": folder / "backends",
            "http-address": "127.0.0.1",
            "http-port": port,
            "allow-grpc": "false",
            "allow-metrics": "false",
        }
        command = [str(triton / "bin/tritonserver")]
        command += [f"--{name}={value}" for name, value in options.items()]
        environ = {**os.environ, "LD_LIBRARY_PATH": str(packages / "nvidia_pytriton.libs")}
        server = subprocess.Popen(command, env=environ)
        try:
            _wait(f"http://127.0.0.1:{port}/v2/health/ready", server)
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(PATIENCE_S)


def _give_numpy(models: Path, packages: Path) -> None:
    """Let the Python of Triton's backend find NumPy. This Python does not use the virtual
    environment."""
    for file in models.glob("*/1/model.py"):
        found = f"import sys\nsys.path.insert(0, {str(packages)!r})\n"
        file.write_text(found + file.read_text())


def _wait(url: str, server: "subprocess.Popen[bytes]") -> None:
    end = monotonic() + PATIENCE_S
    while monotonic() < end and server.poll() is None:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass
        sleep(0.2)
    raise RuntimeError("Triton was not ready")


def main() -> None:
    """Record Triton's answers."""
    with _triton() as address:
        RECORDED.write_text(json.dumps(dict(ask(address)), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
