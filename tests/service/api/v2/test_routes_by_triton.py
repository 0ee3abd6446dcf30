"""All calls of NVIDIA's client, tritonclient, to a real server process.

CALLS states for each call whether Convoy answers like Triton or refuses the call on purpose.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.support.servers.several_models import CHANNELS
from tests.support.service.triton import UNKNOWN, TritonClient, files, has_status, shows


def answers(expected: Any) -> Callable[[Any], None]:
    """Return a check that an answer is exactly `expected`."""

    def check(answer: Any) -> None:
        assert answer == expected

    return check


def _is_server(answer: Any) -> None:
    assert answer["name"] == "convoy"
    assert {"binary_tensor_data", "statistics", "classification"} <= set(answer["extensions"])


def _is_channels(answer: Any) -> None:
    assert answer == {
        "name": CHANNELS,
        "versions": ["3"],
        "platform": "convoy_onnx",
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [-1, 3, 4, 6]},
        ],
        "outputs": [{"name": "amount", "datatype": "FP32", "shape": [-1, 3]}],
    }


def _is_configuration(answer: Any) -> None:
    """Check the parts that perf_analyzer and Triton's image_client read."""
    assert (answer["name"], answer["max_batch_size"]) == (CHANNELS, 8)
    (own,), (scores,) = answer["input"], answer["output"]
    assert (own["name"], own["data_type"], own["dims"]) == ("x", "TYPE_FP32", [3, 4, 6])
    assert own["format"] == "FORMAT_NCHW"
    assert (scores["name"], scores["data_type"], scores["dims"]) == ("amount", "TYPE_FP32", [3])
    assert "dynamic_batching" in answer
    assert answer["model_transaction_policy"] == {"decoupled": False}


def test_a_query_asks_for_all_that_a_request_may_name(address: str) -> None:
    def described(path: str) -> Any:
        return httpx.get(f"http://{address}/v2/models/{path}", params={"all": "true"}).json()

    assert described(CHANNELS)["inputs"] == [
        {
            "name": "x",
            "datatype": "FP32",
            "shape": [-1, 3, 4, 6],
            "parameters": {"content": "normalised as the model expects"},
        },
        {
            "name": "image",
            "datatype": "UINT8",
            "shape": [-1, 4, 6, 3],
            "parameters": {"content": "RGB pixels, 0 to 255"},
        },
    ]
    config = described(f"{CHANNELS}/config")
    assert [(one["name"], one["format"], one["optional"]) for one in config["input"]] == [
        ("x", "FORMAT_NCHW", True),
        ("image", "FORMAT_NHWC", True),
    ]
    outputs = [(one["name"], one["shape"]) for one in described("digits")["outputs"]]
    assert outputs == [("logits", [-1, 10]), ("embedding", [-1, 512])]
    wrong = httpx.get(f"http://{address}/v2/models/digits?all=some")
    assert wrong.status_code == 422
    assert "query.all: Input should be a valid boolean" in wrong.json()["error"]


def _are_statistics(*names: str) -> Callable[[Any], None]:
    """Check the parts that perf_analyzer reads. Every number must exist."""

    def check(answer: Any) -> None:
        assert [model["name"] for model in answer["model_stats"]] == list(names)
        for model in answer["model_stats"]:
            assert isinstance(model["version"], str)
            assert model["inference_count"] >= model["execution_count"] >= 0
            assert set(model["inference_stats"]) == {
                *("success", "fail", "queue", "compute_input", "compute_infer"),
                *("compute_output", "cache_hit", "cache_miss"),
            }
            for duration in model["inference_stats"].values():
                assert duration["count"] >= 0
                assert duration["ns"] >= 0

    return check


@dataclass(frozen=True)
class Call:
    """A call and its outcome: an answer, or a refusal with a status and a reason."""

    method: str
    make: Callable[[Any], Any]
    check: Callable[[Any], None] | None = None
    status: str = ""
    says: str = ""


OTHER_VERSION = "Request for unknown model: 'digits' version 9 is not found"

CALLS = [
    Call("is_server_live", lambda c: c.is_server_live(), answers(True)),
    Call("is_server_ready", lambda c: c.is_server_ready(), answers(True)),
    Call("is_model_ready", lambda c: c.is_model_ready("digits"), answers(True)),
    Call("is_model_ready", lambda c: c.is_model_ready("digits", "1"), answers(True)),
    Call("is_model_ready", lambda c: c.is_model_ready("digits", "9"), answers(False)),
    Call("is_model_ready", lambda c: c.is_model_ready("no"), answers(False)),
    Call("get_server_metadata", lambda c: c.get_server_metadata(), _is_server),
    Call("get_model_metadata", lambda c: c.get_model_metadata(CHANNELS), _is_channels),
    Call("get_model_metadata", lambda c: c.get_model_metadata(CHANNELS, "3"), _is_channels),
    Call(
        "get_model_metadata",
        lambda c: c.get_model_metadata("no"),
        status="404",
        says=UNKNOWN,
    ),
    Call(
        "get_model_metadata",
        lambda c: c.get_model_metadata("digits", "9"),
        status="404",
        says=OTHER_VERSION,
    ),
    Call("get_model_config", lambda c: c.get_model_config(CHANNELS), _is_configuration),
    Call("get_model_config", lambda c: c.get_model_config(CHANNELS, "3"), _is_configuration),
    Call("get_model_config", lambda c: c.get_model_config("no"), status="404", says=UNKNOWN),
    Call(
        "get_model_repository_index",
        lambda c: c.get_model_repository_index(),
        answers(
            [
                {"name": CHANNELS, "version": "3", "state": "READY", "reason": ""},
                {"name": "digits", "version": "1", "state": "READY", "reason": ""},
            ]
        ),
    ),
    Call(
        "get_inference_statistics",
        lambda c: c.get_inference_statistics(),
        _are_statistics(CHANNELS, "digits"),
    ),
    Call(
        "get_inference_statistics",
        lambda c: c.get_inference_statistics("digits"),
        _are_statistics("digits"),
    ),
    Call(
        "get_inference_statistics",
        lambda c: c.get_inference_statistics("digits", "1"),
        _are_statistics("digits"),
    ),
    Call(
        "get_inference_statistics",
        lambda c: c.get_inference_statistics("no"),
        status="404",
        says=UNKNOWN,
    ),
    Call("infer", lambda c: c.infer("digits", files(7)), shows(7)),
    Call("infer", lambda c: c.infer("digits", files(7), model_version="1"), shows(7)),
    Call("infer", lambda c: c.infer("no", files(7)), status="404", says=UNKNOWN),
    Call(
        "infer",
        lambda c: c.infer("digits", files(7), model_version="9"),
        status="404",
        says=OTHER_VERSION,
    ),
    Call("async_infer", lambda c: c.async_infer("digits", files(7))(), shows(7)),
    Call(
        "load_model",
        lambda c: c.load_model("digits"),
        status="501",
        says="clients may not load models; to allow it, start the server with --repository-api",
    ),
    Call(
        "unload_model",
        lambda c: c.unload_model("digits"),
        status="501",
        says="clients may not unload models; to allow it, start the server with --repository-api",
    ),
    Call(
        "update_trace_settings",
        lambda c: c.update_trace_settings(settings={"trace_level": ["OFF"]}),
        status="501",
        says="clients cannot change trace settings",
    ),
    Call(
        "update_trace_settings",
        lambda c: c.update_trace_settings("digits", settings={"trace_rate": "1"}),
        status="501",
        says="clients cannot change trace settings",
    ),
    Call(
        "get_trace_settings",
        lambda c: c.get_trace_settings()["trace_level"],
        answers(["OFF"]),
    ),
    Call(
        "get_trace_settings",
        lambda c: c.get_trace_settings("digits")["trace_level"],
        answers(["OFF"]),
    ),
    Call(
        "get_trace_settings",
        lambda c: c.get_trace_settings("no"),
        status="404",
        says=UNKNOWN,
    ),
    Call(
        "update_log_settings",
        lambda c: c.update_log_settings({"log_verbose_level": 1}),
        status="501",
        says="clients cannot change log settings",
    ),
    Call("get_log_settings", lambda c: c.get_log_settings()["log_verbose_level"], answers(0)),
    # None is registered here, and forgetting it is done at once.
    Call(
        "get_system_shared_memory_status",
        lambda c: c.get_system_shared_memory_status(),
        answers([]),
    ),
    Call(
        "get_system_shared_memory_status",
        lambda c: c.get_system_shared_memory_status("r"),
        status="404",
        says="Unable to find shared memory region: 'r'",
    ),
    Call(
        "register_system_shared_memory",
        lambda c: c.register_system_shared_memory("r", "/no_such_key", 64),
        status="400",
        says="Unable to open shared memory region: '/no_such_key'",
    ),
    Call(
        "unregister_system_shared_memory",
        lambda c: c.unregister_system_shared_memory(),
        answers(None),
    ),
    Call(
        "unregister_system_shared_memory",
        lambda c: c.unregister_system_shared_memory("r"),
        answers(None),
    ),
    Call(
        "get_cuda_shared_memory_status",
        lambda c: c.get_cuda_shared_memory_status(),
        answers([]),
    ),
    Call(
        "get_cuda_shared_memory_status",
        lambda c: c.get_cuda_shared_memory_status("r"),
        status="404",
        says="Unable to find shared memory region: 'r'",
    ),
    Call(
        "register_cuda_shared_memory",
        lambda c: c.register_cuda_shared_memory("r", "aGFuZGxl", 0, 64),
        status="501",
        says="CUDA shared memory is not supported",
    ),
    Call(
        "unregister_cuda_shared_memory",
        lambda c: c.unregister_cuda_shared_memory(),
        answers(None),
    ),
    Call(
        "unregister_cuda_shared_memory",
        lambda c: c.unregister_cuda_shared_memory("r"),
        answers(None),
    ),
]

# What the client does without the server.
LOCAL = {"close", "generate_request_body", "parse_response_body", "plugin"}
LOCAL |= {"register_plugin", "unregister_plugin"}

# What only gRPC has: tests/service/grpc/test_port.py has their tests.
STREAMS = {"start_stream", "async_stream_infer", "stop_stream"}


def test_every_call_that_the_client_has_is_listed() -> None:
    for kind in (triton_http, triton_grpc):
        methods = dict(inspect.getmembers(kind.InferenceServerClient, inspect.isfunction))
        public = {name for name in methods if not name.startswith("_")}
        assert public - LOCAL - STREAMS == {call.method for call in CALLS}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.method)
def test_a_call_is_answered_or_refused_on_purpose(client: TritonClient, call: Call) -> None:
    if call.check is not None:
        call.check(call.make(client))
    else:
        with pytest.raises(InferenceServerException) as refused:
            call.make(client)
        assert has_status(refused.value, call.status)
        assert call.says in refused.value.message()
