"""The HTTP client; needs aiohttp, of the extra `loadtest`."""

import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self
from urllib.parse import quote

import aiohttp
from yarl import URL

from loadtest.answers import Answer, BadAnswerError, read_answer, same_picture
from loadtest.errors import LoadTestError
from loadtest.journal import MIXED_UP, OK, REFUSED, Outcome
from loadtest.pictures import Picture
from service.api.urgency import TIMEOUT_HEADER

BAD_ANSWER = "bad answer"
TIMED_OUT = "timed out"

# Connections that stay open longer than any server's are found closed in the middle of a run.
_KEEP_ALIVE_S = 30


class Client:
    """Asks one server about pictures, in turn; an asynchronous context manager."""

    def __init__(
        self,
        url: str,
        pictures: Sequence[Picture],
        *,
        model: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        deadline_s: float | None = None,
    ) -> None:
        """`url` is where the server is, with the path prefix of a proxy if it has one. It is told
        the deadline, and may refuse who cannot be answered by then.
        """
        path = "/v1/classify" if model is None else f"/v1/models/{quote(model, safe='')}/classify"
        self._metrics_url = URL(url.rstrip("/") + "/metrics")
        self._url = URL(url.rstrip("/") + path, encoded=True)
        self._pictures = pictures
        self._headers = [
            {**(headers or {}), "Content-Type": picture.media_type} for picture in pictures
        ]
        # Not told when it is tried out: its first answers may take longer than any later ones.
        self._told = {} if deadline_s is None else {TIMEOUT_HEADER: f"{deadline_s * 1e3:g}"}
        self._timeout_s = timeout_s
        self._refused = None if deadline_s is None else 504
        self._expected: list[Answer] = []

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            # As many connections as are needed: a limit would make requests wait in here.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            skip_auto_headers=("Accept", "Accept-Encoding"),
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def send(self, number: int) -> Outcome:
        """Send the picture whose turn it is; how that ended."""
        turn = number % len(self._pictures)
        try:
            status, body = await self._post(turn, self._told)
        except TimeoutError:
            return Outcome(TIMED_OUT)
        except (aiohttp.ClientError, OSError) as error:
            return Outcome(reason(error))
        if status != 200:
            return Outcome(REFUSED if status == self._refused else str(status))
        try:
            answer = read_answer(body)
        except BadAnswerError:
            return Outcome(BAD_ANSWER)
        if self._expected and not same_picture(answer, self._expected[turn]):
            return Outcome(MIXED_UP)
        return Outcome(OK, answer.phases_ms)

    async def try_out(self) -> None:
        """Ask once, alone; LoadTestError if that is not answered as it should be."""
        await self._ask(0)

    async def learn(self) -> None:
        """Ask about every picture alone, for `send` to compare; LoadTestError as `try_out`."""
        self._expected = [await self._ask(turn) for turn in range(len(self._pictures))]

    async def metrics(self) -> str | None:
        """What /metrics says; None where the server has none."""
        try:
            async with self._session.get(self._metrics_url) as response:
                return await response.text() if response.status == 200 else None
        except (aiohttp.ClientError, OSError):  # TimeoutError is an OSError
            return None

    async def _ask(self, turn: int) -> Answer:
        name = self._pictures[turn].name
        try:
            status, body = await self._post(turn, {})
            if status == 200:
                return read_answer(body)
        except TimeoutError:
            raise LoadTestError(f"{self._url} did not answer in {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise LoadTestError(f"cannot ask {self._url}: {reason(error)}") from error
        except BadAnswerError as error:
            raise LoadTestError(f"{self._url} answers {name} with {error}") from error
        text = body[:300].decode("utf-8", "replace")
        raise LoadTestError(f"{self._url} answers {name} with status {status}: {text}")

    async def _post(self, turn: int, more: Mapping[str, str]) -> tuple[int, bytes]:
        async with self._session.post(
            self._url,
            data=self._pictures[turn].data,
            headers={**self._headers[turn], **more} if more else self._headers[turn],
            allow_redirects=False,  # an answer from elsewhere would be measured as this server's
        ) as response:
            return response.status, await response.read()


def reason(error: Exception) -> str:
    """What went wrong with a connection, in words that tell kinds apart and not occasions."""
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number).lower()
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "unknown host"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "disconnected by the server"
    return type(error).__name__
