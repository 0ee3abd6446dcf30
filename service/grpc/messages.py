"""Creates protobuf messages from descriptors, which protoc compiled from the .proto files in this
folder.

The descriptors have a pool of their own, because other libraries in the process may add the same
protocol to the default pool.
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
    """Parse bytes as a message of the class `kind`. Raises BadRequestError if they are not such a
    message."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise BadRequestError(
            f"the message is not a valid {kind.DESCRIPTOR.name}: {error}"
        ) from error


def coding_of(data: bytes) -> str:
    """Return HTTP's name for a message's compression, or "" if the message is not compressed.

    grpcio does not decompress the messages itself, because that would block the event loop. The
    first bytes show the compression. No uncompressed message of these protocols begins like a
    compressed one.
    """
    if data.startswith(b"\x1f\x8b"):
        return "gzip"
    return "deflate" if data[:1] == b"\x78" and int.from_bytes(data[:2]) % 31 == 0 else ""


def fill(kind: Any, fields: Any) -> bytes:
    """Create a message of the class `kind` with these fields, and return its bytes. Fields that the
    class lacks are ignored."""
    message = kind()
    ParseDict(msgspec.to_builtins(fields), message, ignore_unknown_fields=True)
    encoded: bytes = message.SerializeToString()
    return encoded
