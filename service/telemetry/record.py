"""Defines the record of a request, for the access log and for traces. The record covers the time
from the request's headers to the last byte of its answer."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from time import perf_counter

from service.errors import Code
from service.fair_queue import Client
from service.telemetry.counts import Phases


@dataclass(eq=False, slots=True)
class RequestRecord:
    """The facts about one request. They are filled in while the request is handled.

    The fields `caller`, `charge` and `known_as`, which `Edge` sets, affect how the request is
    handled.
    """

    id: bytes
    client: str  # address, and number of the API key
    method: bytes
    path: bytes
    query: bytes
    headers: Mapping[bytes, bytes]  # names in lower case; the last of several with one name
    caller: Client  # whose turn it is, until the edge knows the API key
    charge: "Callable[[RequestRecord, int], None] | None" = None  # with how many images it has
    known_as: Collection[str] | None = None  # the server's names for changes; None: any
    started: float = field(default_factory=perf_counter)
    received: float = 0.0  # perf_counter seconds at the end of the body
    ended: float = 0.0
    bytes_in: int = 0  # of the body
    status: int = 0  # 0: not answered yet
    bytes_out: int = 0  # of the answer's body
    refused: Code | None = None  # by its connection, while it was in progress
    # Known only for answers with scores:
    model: str = ""
    images: int = 0
    batch: int = 0  # size of the last image's batch
    phases: Phases | None = None


OnEnd = Callable[[RequestRecord], None]
