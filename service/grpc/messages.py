"""Makes protobuf messages from descriptors that protoc compiled from the .proto files here.

They have a pool of their own: a process may hold other copies of the same protocol.
"""

from importlib.resources import files
from typing import Any

import msgspec
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from service.errors import BadRequestError

DESCRIPTORS = "descriptors.binpb"
INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

POOL: Any = DescriptorPool()
for _file in FileDescriptorSet.FromString(
    files(__package__).joinpath(DESCRIPTORS).read_bytes()
).file:
    POOL.AddSerializedFile(_file.SerializeToString())


def message_class(name: str) -> Any:
    """Return the class of the message with this full name."""
    return GetMessageClass(POOL.FindMessageTypeByName(name))


def parse(kind: Any, data: bytes) -> Any:
    """Return the message in the bytes. Raises BadRequestError if they hold none."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise BadRequestError(f"the message is no {kind.DESCRIPTOR.name}: {error}") from error


def coding_of(data: bytes) -> str:
    """Return how a message is compressed, in HTTP's words, or nothing.

    The port leaves messages as they came: grpcio would inflate them in the event loop. The first
    bytes tell, because none of these protocols' messages begins with them.
    """
    if data.startswith(b"\x1f\x8b"):
        return "gzip"
    return "deflate" if data[:1] == b"\x78" and int.from_bytes(data[:2]) % 31 == 0 else ""


def fill(kind: Any, fields: Any) -> bytes:
    """Return, in bytes, a message with these fields; fields that it does not have are left out."""
    message = kind()
    ParseDict(msgspec.to_builtins(fields), message, ignore_unknown_fields=True)
    encoded: bytes = message.SerializeToString()
    return encoded
