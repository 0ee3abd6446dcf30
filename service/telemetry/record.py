"""A request's data for the access log and traces, from its head to the last byte of its answer."""

from collections.abc import Callable, Mapping
from time import perf_counter

from service.telemetry.statistics import Phases


class RequestRecord:
    """One request; its fields are filled in as they become known, and decide nothing."""

    __slots__ = (
        *("id", "client", "method", "path", "query", "headers", "started", "ended"),
        *("bytes_in", "status", "bytes_out", "model", "images", "batch", "phases"),
    )

    def __init__(
        self,
        request_id: bytes,
        client: str,
        method: bytes,
        target: bytes,
        headers: Mapping[bytes, bytes],
    ) -> None:
        self.id = request_id
        self.client = client  # address, and number of the API key
        self.method = method
        self.path, _, self.query = target.partition(b"?")
        self.headers = headers  # names in lower case; the last of several with one name
        self.started = perf_counter()
        self.ended = 0.0
        self.bytes_in = 0  # of the body
        self.status = 0  # 0: not answered yet
        self.bytes_out = 0  # of the answer's body
        # Known of answers with scores:
        self.model = ""
        self.images = 0
        self.batch = 0  # size of the last image's batch
        self.phases: Phases | None = None


OnEnd = Callable[[RequestRecord], None]
