"""The messages have the same field numbers as in the .proto files and as Triton's messages."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from service import grpc
from service.errors import BadRequestError
from service.grpc.messages import DESCRIPTORS, INFERENCE, POOL, fill, message_class, parse

FOLDER = Path(grpc.__file__).parent


def test_the_descriptors_are_what_protoc_makes_of_the_files(tmp_path: Path) -> None:
    made = tmp_path / DESCRIPTORS
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--descriptor_set_out={made}"]
    subprocess.run([*command, "inference.proto", "health.proto"], cwd=FOLDER, check=True)
    assert made.read_bytes() == (FOLDER / DESCRIPTORS).read_bytes(), "run `make protocol`"


def fields(messages: Any, within: str = "") -> Iterator[tuple[str, Any]]:
    for message in messages:
        for field in message.fields:
            kind = field.message_type or field.enum_type
            about = field.number, field.type, field.is_repeated, kind and kind.name
            yield f"{within}{message.name}.{field.name}", about
        for enum in message.enum_types:
            for value in enum.values:
                yield f"{within}{message.name}.{enum.name}.{value.name}", value.number
        yield from fields(message.nested_types, f"{within}{message.name}.")


def test_every_field_has_the_number_and_type_that_it_has_in_triton() -> None:
    theirs = dict(
        each
        for file in (service_pb2.DESCRIPTOR, model_config_pb2.DESCRIPTOR)
        for each in fields(file.message_types_by_name.values())
    )
    ours = dict(fields(POOL.FindFileByName("inference.proto").message_types_by_name.values()))
    assert ours == {name: theirs.get(name) for name in ours}
    assert "ModelInferRequest.raw_input_contents" in ours
    # Of inference, nothing is left out.
    messages = ("ModelInfer", "InferParameter", "InferTensorContents")
    assert {name for name in theirs if name.startswith(messages)} <= set(ours)


def test_every_method_is_there() -> None:
    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    ours = POOL.FindServiceByName(INFERENCE).methods
    assert {(m.name, m.input_type.name, m.output_type.name) for m in ours} == {
        (m.name, m.input_type.name, m.output_type.name) for m in theirs
    }


def test_a_message_is_filled_with_the_fields_that_it_has() -> None:
    kind = message_class("inference.ServerMetadataResponse")
    made = fill(kind, {"name": "convoy", "extensions": ["a", "b"], "unknown": 7})
    assert parse(kind, made) == kind(name="convoy", extensions=["a", "b"])


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(BadRequestError, match="the message is not a valid ServerMetadataResponse"):
        parse(message_class("inference.ServerMetadataResponse"), b"\x0a\xff")
