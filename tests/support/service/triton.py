"""Makes the same calls over HTTP and over gRPC, with NVIDIA's client tritonclient."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.support.servers.several_models import SAMPLES

UNKNOWN = "Request for unknown model: 'no' is not found"

# The gRPC status that corresponds to each HTTP status.
_STATUSES = {
    "400": "INVALID_ARGUMENT",
    "404": "NOT_FOUND",
    "413": "INVALID_ARGUMENT",
    "415": "INVALID_ARGUMENT",
    "501": "UNIMPLEMENTED",
    "504": "DEADLINE_EXCEEDED",
}


@dataclass(frozen=True)
class Tensor:
    """Holds an input. If there is no array, the input has no elements."""

    name: str
    datatype: str
    shape: Sequence[int]
    array: Any = None
    binary: bool = True  # over HTTP

    def by(self, protocol: str) -> Any:
        """Return the input for the client of a protocol."""
        kind = triton_grpc if protocol == "grpc" else triton_http
        tensor = kind.InferInput(self.name, list(self.shape), self.datatype)
        if self.array is not None:
            options = {} if protocol == "grpc" else {"binary_data": self.binary}
            tensor.set_data_from_numpy(self.array, **options)
        return tensor


@dataclass(frozen=True)
class Wanted:
    """Holds the name and the format of an output."""

    name: str
    classes: int = 0
    binary: bool = True  # over HTTP

    def by(self, protocol: str) -> Any:
        """Return the output for the client of a protocol."""
        if protocol == "grpc":
            return triton_grpc.InferRequestedOutput(self.name, class_count=self.classes)
        return triton_http.InferRequestedOutput(
            self.name, class_count=self.classes, binary_data=self.binary
        )


class TritonClient:
    """Makes every call of NVIDIA's client for one protocol. Answers over gRPC are converted to the
    form of answers over HTTP."""

    def __init__(self, protocol: str, address: str) -> None:
        self.protocol = protocol
        self.own: Any
        if protocol == "grpc":
            self.own = triton_grpc.InferenceServerClient(address)
        else:
            self.own = triton_http.InferenceServerClient(address, concurrency=4)

    def infer(
        self,
        model: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Wanted] | None = None,
        **options: Any,
    ) -> Any:
        """Return the answer to an inference."""
        wanted = None if outputs is None else [each.by(self.protocol) for each in outputs]
        return self.own.infer(model, self._by(inputs), outputs=wanted, **options)

    def async_infer(self, model: str, inputs: Sequence[Tensor]) -> Callable[[], Any]:
        """Begin an inference, and return a function that waits for its answer."""
        if self.protocol == "http":
            begun: Callable[[], Any] = self.own.async_infer(model, self._by(inputs)).get_result
            return begun
        ended: Future[Any] = Future()

        def end(result: Any, error: Any) -> None:
            if error:
                ended.set_exception(error)
            else:
                ended.set_result(result)

        self.own.async_infer(model, self._by(inputs), callback=end)
        return ended.result

    def _by(self, inputs: Sequence[Tensor]) -> list[Any]:
        return [each.by(self.protocol) for each in inputs]

    def __getattr__(self, name: str) -> Any:
        """Return any other method of the client. The method's answer is converted to the form that
        it has over HTTP."""
        method = getattr(self.own, name)

        def call(*arguments: Any, **options: Any) -> Any:
            answer = method(*arguments, **options)
            unwrap: Callable[[Any], Any] = _UNWRAP.get(name, plain)
            return answer if isinstance(answer, bool | None) else unwrap(answer)

        return method if self.protocol == "http" else call


@contextmanager
def triton_client(protocol: str, address: str) -> Iterator[TritonClient]:
    """Yield a client. It is closed at the end of the block."""
    client = TritonClient(protocol, address)
    try:
        yield client
    finally:
        client.own.close()


def plain(message: Any) -> dict[str, Any]:
    """Return a message in the form that it would have in JSON. Fields that are not set are
    included."""
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return {key: plain(each) for key, each in value.items()}
    if field.is_repeated:
        return [_one(field, each) for each in value]
    return _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    return field.enum_type.values_by_number[value].name if field.enum_type else value


# Functions that remove the parts that an answer has only over gRPC.
_UNWRAP: dict[str, Callable[[Any], Any]] = {
    "get_model_config": lambda answer: plain(answer.config),
    "get_model_repository_index": lambda answer: plain(answer)["models"],
    "get_trace_settings": lambda answer: {
        name: each["value"] for name, each in plain(answer)["settings"].items()
    },
    "get_log_settings": lambda answer: {
        name: next(iter(each.values())) for name, each in plain(answer)["settings"].items()
    },
    **dict.fromkeys(
        ("get_system_shared_memory_status", "get_cuda_shared_memory_status"),
        lambda answer: list(plain(answer)["regions"].values()),
    ),
}


def response_of(answer: Any) -> Any:
    """Return the response of an inference."""
    response = answer.get_response()
    return response if isinstance(response, dict) else plain(response)


def has_status(error: InferenceServerException, status: str) -> bool:
    """Return whether a refusal has this HTTP status or, over gRPC, the corresponding status."""
    return error.status() in (status, f"StatusCode.{_STATUSES[status]}")


def files_input(*files: bytes, shape: list[int] | None = None) -> Tensor:
    """Return an input of encoded images for the server to decode."""
    shape = shape or [len(files)]
    return Tensor("image", "BYTES", shape, np.array(files, dtype=np.object_).reshape(shape))


def pixels_input(pixels: Any, *, binary: bool = True) -> Tensor:
    """Return an input of pixels, in the form that the engine takes."""
    return Tensor("image", "UINT8", pixels.shape, pixels, binary)


def samples(*digits: int) -> list[bytes]:
    """Return the files of the built-in model's sample images."""
    return [SAMPLES[digit].read_bytes() for digit in digits]


def files(*digits: int) -> list[Tensor]:
    """Return the inputs of a request with sample images."""
    return [files_input(*samples(*digits))]


def shows(digit: int) -> Callable[[Any], None]:
    """Return a function that checks that an answer names this digit."""

    def check(answer: Any) -> None:
        assert answer.as_numpy("logits").argmax(axis=1).tolist() == [digit]

    return check
