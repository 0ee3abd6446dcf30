"""Deliberate mistakes in requests: each answer says what was wrong and what would be right."""

import base64
import gzip
import io
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import httpx
import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
from onnx import TensorProto, helper
from PIL import Image
from tritonclient.utils import InferenceServerException

from tests.service.whole.test_mistakes_of_commands import COMMANDS, FORMATS, VARIABLES, save
from tests.support import PATIENCE_S
from tests.support.servers.several_models import CHANNELS, SAMPLES, announced, make_models
from tests.support.service.triton import Tensor, files_input

ADDRESSES = r"127\.0\.0\.1:\d+"
DIGIT = SAMPLES[3].read_bytes()
V2 = "/v2/models/digits/infer"
KEY = "a-key-of-thirty-two-characters-!"


class Request(NamedTuple):
    """A request, and the server that receives it."""

    method: str
    path: str
    options: Mapping[str, Any]


def post(path: str = "/v1/classify", **options: Any) -> Request:
    return Request("POST", path, options or {"content": DIGIT})


def typed(kind: str, body: bytes = DIGIT) -> Request:
    return post(content=body, headers={"content-type": kind})


def headed(name: str, value: str) -> Request:
    return post(content=DIGIT, headers={name: value})


def asked(query: str, path: str = "/v1/classify") -> Request:
    return post(f"{path}?{query}", content=DIGIT)


def tensor(**changed: Any) -> Request:
    """Return a V2 request for one blank digit, with these fields of the input changed. None removes
    a field."""
    blank = {"name": "image", "datatype": "UINT8", "shape": [1, 32, 32, 1], "data": [0] * 1024}
    outputs = {"outputs": changed.pop("outputs")} if "outputs" in changed else {}
    given = {key: value for key, value in (blank | changed).items() if value is not None}
    return post(V2, json={"inputs": [given], **outputs})


def encoded(kind: str, size: tuple[int, int] = (40, 40), **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("L", size, 128).save(file, kind, **options)
    return file.getvalue()


def png_of(width: int, height: int) -> bytes:
    """Return a PNG that declares this many pixels."""
    small = encoded("PNG")
    return small[:16] + struct.pack(">II", width, height) + small[24:]


def form(*files: bytes, field: str = "file") -> Request:
    return post(files=[(field, (f"{i}.jpg", data)) for i, data in enumerate(files, 1)])


# Of each mistake the status, what was wrong and what would be right.
REQUESTS: dict[str, tuple[Request, int, str, str]] = {
    "a wrong form field": (form(DIGIT, field="picture"), 422, "'picture'", "'file'"),
    "text instead of an image": (post(content=b"is this a cat?"), 415, "is this a cat?", FORMATS),
    "a type that is none": (typed("text/plain"), 415, "text/plain", "image/jpeg"),
    "a type of video": (typed("audio/mpeg"), 415, "audio/mpeg", "image/jpeg"),
    "GET": (Request("GET", "/v1/classify", {}), 405, "does not support GET", "use POST"),
    "no body": (post(content=b""), 400, "empty", "send the image itself as image/jpeg"),
    "no body, said to be JSON": (
        typed("application/json", b""),
        400,
        "truncated",
        "`input` must be one image",
    ),
    "top_k=0": (asked("top_k=0"), 422, "top_k", "1 to 10"),
    "top_k of too many": (asked("top_k=1000"), 422, "top_k", "1 to 10"),
    "topk": (asked("topk=3"), 422, "topk", "top_k"),
    "another server's path": (post("/classify"), 404, "/classify", "/v1/classify"),
    "a path of Hugging Face": (post("/predict"), 404, "/predict", "/v1/classify"),
    "a deadline that is no number": (headed("x-timeout-ms", "soon"), 422, "soon", "millisecond"),
    "a deadline that has passed": (headed("x-timeout-ms", "0.001"), 504, "deadline", "allow more"),
    "200 images": (form(*[DIGIT] * 200), 413, "more than 128 images", "send several requests"),
    "a PDF": (post(content=b"%PDF-1.7\n" + bytes(99)), 415, "a PDF", FORMATS),
    "an SVG": (post(content=b"<svg xmlns='x'/>" + bytes(9)), 415, "an SVG", FORMATS),
    "a JPEG XL": (post(content=b"\xff\x0a" + bytes(99)), 415, "a JPEG XL", FORMATS),
    "a JPEG 2000": (post(content=encoded("JPEG2000")), 415, "a JPEG 2000", FORMATS),
    "an animated WebP": (
        post(content=encoded("WEBP", save_all=True, append_images=[Image.new("L", (40, 40))])),
        *(415, "animated WebP", "send a still image"),
    ),
    "a truncated JPEG": (
        post(content=encoded("JPEG", (640, 480))[:-300]),
        *(400, "truncated", "save the image again"),
    ),
    "49 megapixels": (post(content=png_of(7000, 7000)), 413, "49 megapixels", "--max-megapixels"),
    "30 MB": (
        post(content=b"\xff\xd8" + bytes(30_000_000)),
        *(413, "30000002", "20000000 bytes are allowed in a body (--max-body-mb)"),
    ),
    "input for inputs": (post(V2, json={"input": []}), 400, "missing required field", "`inputs`"),
    "JSON with a comma too many": (
        post(V2, content=b'{"inputs": [],}', headers={"content-type": "application/json"}),
        *(400, "JSON is malformed", "trailing comma in object (byte 14)"),
    ),
    "FP16 pixels": (tensor(datatype="FP16"), 400, "FP16", "UINT8"),
    "INT32 pixels": (tensor(datatype="INT32"), 400, "INT32", "UINT8"),
    "an image of another size": (
        tensor(shape=[1, 28, 28, 1], data=[0] * 784),
        *(400, "28", "32, 32, 1"),
    ),
    "an output that is none": (
        tensor(outputs=[{"name": "scores"}]),
        *(400, "scores", "logits"),
    ),
    "a wrong field of embeddings": (
        post("/v1/embeddings", json={"image": "aaaa"}),
        *(400, "unknown field `image`", "`input` must be one image"),
    ),
    "a model to load": (
        post("/v2/repository/models/digits/load", content=b""),
        *(501, "load", "--repository-api"),
    ),
    "maps of a label that is none": (
        asked("explain=9x", "/v1/models/mapped/classify"),
        *(422, "9x", "class:N"),
    ),
    "maps as a PNG by a wrong name": (
        asked("explain=1&explain_as=gif", "/v1/models/mapped/classify"),
        *(422, "gif", "numbers or overlay"),
    ),
    "an unknown model": (
        post("/v1/models/digit/classify"),
        *(404, "'digit'", "did you mean 'digits'"),
    ),
    "an unknown model over V2": (
        Request("GET", "/v2/models/resnet50", {}),
        *(404, "'resnet50' is not found", f"this server's models: {CHANNELS}, digits, mapped"),
    ),
    "the third of three files": (form(DIGIT, DIGIT, b"no"), 415, "image 3 of 3", FORMATS),
    "maps of a network that has none": (
        asked("explain=1"),
        *(422, "has no maps", "global average pooling"),
    ),
    "JSON by curl -d, which does not say so": (
        typed("application/x-www-form-urlencoded", b'{"input": "/9j/4AAQ"}'),
        *(415, "looks like JSON", "needs Content-Type: application/json"),
    ),
    "a word that is base64, too": (post(json={"input": "zzzz"}), 415, "these 3 bytes", FORMATS),
    "no base64": (post(json={"input": "zz*z"}), 400, "base64", "data:image/jpeg;base64"),
    # New ones.
    "DELETE": (Request("DELETE", "/v1/classify", {}), 405, "does not support DELETE", "use POST"),
    "top_k of words": (asked("top_k=three"), 422, "three", "1 to 10"),
    "a threshold in percent": (asked("threshold=50"), 422, "threshold", "0 to 1"),
    "a priority that is none": (headed("x-priority", "urgent"), 422, "urgent", "high"),
    "a type of tensor by another name": (tensor(datatype="float32"), 400, "float32", "FP32"),
    "a tensor without a shape": (tensor(shape=None), 400, "missing required field", "`shape`"),
    "a tensor without numbers": (tensor(data=[1, 2, 3]), 400, "3", "1024"),
    "an input by another name": (tensor(name="pixels"), 400, "'pixels'", "image"),
    "JSON with a wrong field": (
        post(json={"image": "aaaa"}),
        *(400, "unknown field `image`", "`input` must be one image"),
    ),
    "a path in JSON": (post(json={"input": "/home/me/cat.jpg"}), 400, "base64", "data:image"),
    "a URL in JSON": (
        post(json={"input": "https://example.com/cat.jpg"}),
        *(400, "addresses are not fetched", "the file in base64"),
    ),
    "compressed by Brotli": (
        headed("content-encoding", "br"),
        415,
        "'br'",
        "send the body as it is",
    ),
    "a form without its boundary": (
        typed("multipart/form-data"),
        400,
        "no boundary",
        "let the HTTP client write",
    ),
    "a file by curl -d, which drops its line ends": (
        typed("application/x-www-form-urlencoded", DIGIT.translate(None, b"\0\r\n")),
        *(400, "curl -d", "--data-binary @cat.jpg"),
    ),
    "the name of a file by curl -d": (
        typed("application/x-www-form-urlencoded", b"cat.jpg"),
        *(415, "this is the text 'cat.jpg'", "--data-binary @cat.jpg"),
    ),
    "a form of no file": (
        post(files={"file": (None, "cat.jpg")}),
        *(415, "cat.jpg", "@"),
    ),
    "a form with the type of an image": (
        typed("image/jpeg", b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n' + DIGIT),
        *(415, "this is a form", "multipart/form-data with its boundary"),
    ),
    "a form that is URL-encoded": (
        post(data={"file": DIGIT}),
        *(415, "this is a URL-encoded form", "files={...} instead of data={...}"),
    ),
    "an image with the type of JSON": (
        typed("application/json"),
        *(400, "the body is a JPEG image", "Content-Type: image/jpeg"),
    ),
    "GET of a model": (
        Request("GET", "/v1/models/digits", {}),
        *(404, "nothing at /v1/models/digits;", "did you mean /v1/models?"),
    ),
    "a version that is not there": (
        Request("GET", "/v2/models/digits/versions/7", {}),
        *(404, "version 7", "the served version is 1"),
    ),
    "a path that is nearly one": (post("/v1/embedding"), 404, "/v1/embedding", "/v1/embeddings"),
    "a path of V2 that is nearly one": (
        post("/v2/models/digits/infre"),
        *(404, "infre", "/v2/models/digits/infer"),
    ),
    "a slash too many": (post("//v1/classify"), 404, "//v1/classify", "/v1/classify"),
    # Newer ones.
    "an image to the page": (post("/"), 405, "/ does not support POST", "POST images to /v1/class"),
    "an image to the list of models": (post("/v1/models"), 405, "use GET", "/v1/classify"),
    "an image to a model": (post("/v1/models/digits"), 404, "nothing at", "digits/classify"),
    "a path of no server": (Request("GET", "/status", {}), 404, "/status", "/docs"),
    "base64 as the body": (
        post(content=base64.b64encode(DIGIT)),
        *(415, "an image in base64", '{"input": "..."}, with Content-Type: application/json'),
    ),
    "a data URL as the body": (
        post(content=b"data:image/jpeg;base64," + base64.b64encode(DIGIT)),
        *(415, "an image in base64", '{"input": "..."}, with Content-Type: application/json'),
    ),
    "gzip that no header names": (post(content=gzip.compress(DIGIT)), 415, "by gzip", FORMATS),
    "an array of NumPy": (post(content=b"\x93NUMPY" + bytes(99)), 415, "a NumPy array", "V2"),
    "base64 with line ends": (
        post(json={"input": base64.encodebytes(DIGIT).decode()}),
        *(400, "it has line breaks", "base64 -w0"),
    ),
    "top_k in JSON": (post(json={"input": "", "top_k": 3}), 400, "`top_k`", "?top_k=3"),
    "top_k in a form": (
        post(files={"file": ("3.jpg", DIGIT)}, data={"top_k": "3"}),
        *(422, "'top_k'", "?top_k=3"),
    ),
    "a form with another boundary": (
        typed("multipart/form-data; boundary=y", b"--x\r\n\r\n"),
        *(400, "malformed", "let the HTTP client write"),
    ),
    "a form of embeddings that is none": (
        post("/v1/embeddings", json={"input": "", "encoding_format": "hex"}),
        *(400, "'hex'", "float or base64"),
    ),
    "a file in place of V2's JSON": (
        post(V2),
        *(400, "the body is a JPEG, not JSON", "Inference-Header-Content-Length: 0"),
    ),
    "binary data without the JSON's length": (
        post(V2, content=b'{"inputs":[]}' + bytes(9)),
        *(400, "trailing characters", "set Inference-Header-Content-Length to the length"),
    ),
    "a length beyond the body": (
        post(V2, content=b"{}", headers={"inference-header-content-length": "99"}),
        *(400, "is 99, but the body has 2 bytes", "the length of the JSON"),
    ),
}


class Servers(NamedTuple):
    """Holds the addresses of two servers. The first serves two models, one of them as default. The
    second needs a key."""

    http: str
    grpc: str
    keyed: str


def mapped() -> onnx.GraphProto:
    """Return a network that has maps."""
    weights = {
        "k": np.ones((4, 3, 1, 1), np.float32),
        "w": np.eye(3, 4, dtype=np.float32),
        "b": np.zeros(3, np.float32),
    }
    return helper.make_graph(
        [
            helper.make_node("Conv", ["x", "k"], ["c"]),
            helper.make_node("GlobalAveragePool", ["c"], ["p"]),
            helper.make_node("Flatten", ["p"], ["f"]),
            helper.make_node("Gemm", ["f", "w", "b"], ["y"], transB=1),
        ],
        "mapped",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = make_models(tmp_path_factory.mktemp("served") / "models")
    (folder / "mapped").mkdir()
    save(folder / "mapped" / "model.onnx", mapped())
    keys = folder.parent / "keys"
    keys.write_text(KEY + "\n")
    usual = ["--device", "cpu", "--max-batch", "1"]
    default = ["--default-model", "digits", "--grpc-port", "0"]
    with (
        announced(folder, *usual, *default) as line,
        announced(folder, *usual, "--api-key-file", keys) as other,
    ):
        http, grpc = re.findall(ADDRESSES, line)[:2]
        yield Servers(http, grpc, re.findall(ADDRESSES, other)[0])


@pytest.fixture(scope="module")
def client(servers: Servers) -> Iterator[httpx.Client]:
    """Yield a client of the first server. A client for each request would read the certificates of
    all authorities again."""
    with httpx.Client(timeout=PATIENCE_S) as client:
        yield client


@pytest.mark.parametrize("name", REQUESTS)
def test_the_answer_to_a_wrong_request_says_what_would_be_right(
    servers: Servers, client: httpx.Client, name: str
) -> None:
    request, status, wrong, right = REQUESTS[name]
    method, path, options = request
    answer = client.request(method, f"http://{servers.http}{path}", **options)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert wrong in error
    assert right in error


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ({}, "an API key is required"),
        ({"x-api-key": "a-key"}, "this API key is not known"),
        ({"authorization": "Bearer a-key"}, "this API key is not known"),
        ({"authorization": "Basic YTpi"}, "an API key is required"),
    ],
)
def test_a_missing_key_is_told_from_a_wrong_one(
    servers: Servers, headers: Mapping[str, str], wrong: str
) -> None:
    answer = httpx.post(f"http://{servers.keyed}/v1/classify", content=DIGIT, headers=headers)
    assert answer.status_code == 401
    assert wrong in answer.json()["error"]
    assert "Authorization: Bearer KEY" in answer.json()["error"]


def test_without_a_default_the_models_paths_are_listed(servers: Servers) -> None:
    headers = {"x-api-key": KEY}
    answer = httpx.post(f"http://{servers.keyed}/v1/classify", content=DIGIT, headers=headers)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert "there is no default model" in error
    assert f"/v1/models/{CHANNELS}/classify" in error


def by_grpc(model: str, given: Tensor) -> Callable[[triton_grpc.InferenceServerClient], Any]:
    return lambda client: client.infer(model, [given.by("grpc")])


PIXELS = np.zeros((1, 28, 28, 1), np.uint8)
CALLS: dict[str, tuple[Callable[[triton_grpc.InferenceServerClient], Any], str, str, str]] = {
    "an unknown model": (
        lambda client: client.get_model_metadata("digit"),
        *("NOT_FOUND", "'digit' is not found", "did you mean 'digits'"),
    ),
    "an image of another size": (
        by_grpc("digits", Tensor("image", "UINT8", PIXELS.shape, PIXELS)),
        *("INVALID_ARGUMENT", "28", "32, 32, 1"),
    ),
    "text instead of an image": (
        by_grpc("digits", files_input(b"is this a cat?")),
        *("INVALID_ARGUMENT", "is this a cat?", FORMATS),
    ),
    "a model to load": (
        lambda client: client.load_model("digits"),
        *("UNIMPLEMENTED", "load", "--repository-api"),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_answer_to_a_wrong_call_says_what_would_be_right(servers: Servers, name: str) -> None:
    call, status, wrong, right = CALLS[name]
    with triton_grpc.InferenceServerClient(servers.grpc) as client:
        with pytest.raises(InferenceServerException) as raised:
            call(client)
        assert status in str(raised.value.status())
        assert wrong in raised.value.message()
        assert right in raised.value.message()


def test_there_are_60_mistakes_of_a_user_and_20_more() -> None:
    others = 4 + 1 + 1 + 2 + 1  # keys, no default, a port, hubs, an extra
    assert len(REQUESTS) + len(CALLS) + len(COMMANDS) + len(VARIABLES) + others >= 80
