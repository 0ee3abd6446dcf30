"""Sends requests over HTTP with aiohttp. The package's extra `loadtest` contains aiohttp."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Self
from urllib.parse import quote

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from loadtest import LoadTestError
from loadtest.answers import Answer, BadAnswerError, read_answer, same_image
from loadtest.images import ImageFile
from loadtest.journal import MIXED_UP, OK, REFUSED, Outcome

BAD_ANSWER = "bad answer"
TIMED_OUT = "timed out"

# Less than the idle timeout of most servers. A server could close an idle connection just when a
# request is sent.
_KEEP_ALIVE_S = 30


class RequestError(LoadTestError):
    """Raised if a request got no valid answer. `kind` is the HTTP status or a short name of the
    reason, as in `Outcome`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Client:
    """Posts images to one server. After the last image, begins again with the first."""

    def __init__(
        self,
        url: str,
        images: Sequence[ImageFile],
        *,
        model: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        deadline_s: float | None = None,
    ) -> None:
        """Prepare the client. `url` is the address of the server, and may include the path of a
        proxy. Only the requests of `send` have the deadline `deadline_s`."""
        path = "/v1/classify" if model is None else f"/v1/models/{quote(model, safe='')}/classify"
        self._metrics_url = URL(url.rstrip("/") + "/metrics")
        self._url = URL(url.rstrip("/") + path, encoded=True)
        self._images = images
        self._headers = [{**(headers or {}), "Content-Type": image.media_type} for image in images]
        self._timeout_s = timeout_s
        # Only `send` passes the deadline, because the first answers of a server may take longer.
        self._deadline = {} if deadline_s is None else {"X-Timeout-Ms": f"{deadline_s * 1e3:g}"}
        self._expected: list[Answer] = []

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # Without a limit on connections, because requests would otherwise wait for a connection
            # here.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            skip_auto_headers=("Accept", "Accept-Encoding"),
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, number: int) -> Outcome:
        """Post the next image, and return the outcome."""
        turn = number % len(self._images)
        try:
            answer = await self.ask(turn, self._deadline)
        except RequestError as error:
            return Outcome(REFUSED if error.kind == "504" and self._deadline else error.kind)
        if self._expected and not same_image(answer, self._expected[turn]):
            return Outcome(MIXED_UP)
        return Outcome(OK, answer.phases_ms)

    async def learn(self) -> Sequence[Answer]:
        """Post every image once, one after another, and return the answers. From then on, `send`
        compares each answer with the first answer to the same image."""
        self._expected = [await self.ask(turn) for turn in range(len(self._images))]
        return self._expected

    async def metrics(self) -> str | None:
        """Return the text of /metrics, or None if the server has no metrics."""
        try:
            async with self._session.get(self._metrics_url) as response:
                return await response.text() if response.status == 200 else None
        except (aiohttp.ClientError, OSError):  # TimeoutError is an OSError
            return None

    async def ask(self, turn: int, headers: Mapping[str, str] | None = None) -> Answer:
        """Post one image and return the answer. Raises RequestError if there is no valid answer."""
        image = self._images[turn]
        try:
            async with self._session.post(
                self._url,
                data=image.data,
                headers={**self._headers[turn], **(headers or {})},
                allow_redirects=False,  # else another server might be measured
            ) as response:
                status, body = response.status, await response.read()
            if status == 200:
                return read_answer(body)
            kind, problem = str(status), f"status {status}: {body[:300].decode(errors='replace')}"
        except TimeoutError:
            message = f"{self._url} did not answer within {self._timeout_s:g} s (--timeout)"
            raise RequestError(TIMED_OUT, message) from None
        except (aiohttp.ClientError, OSError) as error:
            kind = reason(error)
            raise RequestError(
                kind, f"cannot reach {self._url}: {kind}; check the address and the server"
            ) from error
        except BadAnswerError as error:
            kind, problem = BAD_ANSWER, str(error)
        raise RequestError(kind, f"{self._url} answers {image.name} with {problem}")


def reason(error: Exception) -> str:
    """Return a short name for a connection error. Errors with the same cause have the same name."""
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number).lower()
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "unknown host"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "disconnected by the server"
    return type(error).__name__


def batch_sizes(exposition: str | None, model: str | None = None) -> Counter[int]:
    """Return how many batches of each size the server has run so far, for one model or for all
    models. `exposition` is the text of /metrics. If it lists no batches, return an empty
    mapping."""
    cumulative: Counter[int] = Counter()
    try:
        for family in text_string_to_metric_families(exposition or ""):
            for sample in family.samples:
                if sample.name != "convoy_batch_size_bucket" or sample.labels["le"] == "+Inf":
                    continue
                if model in (None, sample.labels.get("model")):
                    cumulative[int(float(sample.labels["le"]))] += int(sample.value)
    except (ValueError, KeyError):  # not Convoy's metrics
        return Counter()
    return Counter({size: n - cumulative[size - 1] for size, n in cumulative.items()})
