"""What is recorded of a request, from its head to the last byte of its answer.

The access log and traces tell it; nothing decides by it.
"""

from collections.abc import Callable, Mapping
from time import perf_counter

from service.telemetry.statistics import Phases


class RequestRecord:
    """One request; plain data, filled in as things become known."""

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
        self.client = client  # its address, and which of the API keys it used
        self.method = method
        self.path, _, self.query = target.partition(b"?")
        self.headers = headers  # names in lower case; of several of one name the last
        self.started = perf_counter()
        self.ended = 0.0
        self.bytes_in = 0  # of its body
        self.status = 0  # 0: not answered yet
        self.bytes_out = 0  # of the answer's body
        self.model = ""  # these four are known of answers with scores
        self.images = 0
        self.batch = 0  # images in the batch of its last one
        self.phases: Phases | None = None


OnEnd = Callable[[RequestRecord], None]
