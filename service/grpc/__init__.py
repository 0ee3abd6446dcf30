"""Serves KServe's V2 inference protocol over gRPC, on a port of its own."""

from typing import TYPE_CHECKING

from service.hosting.repository import Repository
from service.settings import Settings

if TYPE_CHECKING:
    from service.grpc.port import GrpcPort


def port_of(repository: Repository, settings: Settings) -> "GrpcPort | None":
    """Return the port that the settings ask for; ImportError: grpcio is not installed."""
    if settings.grpc_port is None:
        return None
    from service.grpc.port import GrpcPort  # noqa: PLC0415  needs the extra `grpc`

    # No more messages are let in than images can wait.
    most = settings.max_queue + settings.max_batch
    shared = bool(settings.workers)
    return GrpcPort(settings.host, settings.grpc_port, repository, most, shared=shared)
