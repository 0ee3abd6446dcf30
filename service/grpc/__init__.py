"""Serves KServe's V2 inference protocol over gRPC, on a separate port."""

from typing import TYPE_CHECKING

from service.hosting.repository import Repository
from service.machine.cgroups import available_memory
from service.settings import Settings

if TYPE_CHECKING:
    from service.grpc.port import GrpcPort

# All messages may take this part of the memory, a quarter: as much as decoding may take.
_SHARE = 4


def port_of(repository: Repository, settings: Settings) -> "GrpcPort | None":
    """Return the gRPC port, or None if the settings name none. Raises ImportError if grpcio is not
    installed."""
    if settings.grpc_port is None:
        return None
    from service.grpc.port import GrpcPort  # noqa: PLC0415  needs the extra `grpc`

    return GrpcPort(settings.host, settings.grpc_port, repository, max_arriving(settings))


def max_arriving(settings: Settings) -> int:
    """Return the number of messages that the gRPC port may receive at the same time.

    It is at most the number of images that may wait or run. All messages together may also take at
    most a quarter of the memory. For this, each message is assumed to have the maximum length,
    because grpcio does not tell a message's length before the message has arrived.
    """
    room = available_memory() // _SHARE
    return max(1, min(settings.max_queue + settings.max_batch, room // settings.max_body_bytes))
