"""The middleware of Ray's proxies, without Ray."""

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service.ray.proxy import middlewares

pytestmark = pytest.mark.anyio


async def status(inner: ASGIApp) -> httpx.Response:
    """Return the answer of `inner` after it has passed all middlewares."""
    app = inner
    for each in middlewares():
        app = each.cls(app, *each.args, **each.kwargs)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        return await client.post("/v1/classify", content=b"x")


async def unanswered(scope: Scope, receive: Receive, send: Send) -> None:
    """Send no answer, like Ray's proxy after a replica is lost."""


@pytest.mark.parametrize("code", [200, 500])
async def test_answers_pass(code: int) -> None:
    answer = await status(PlainTextResponse("said", code))
    assert (answer.status_code, answer.text) == (code, "said")


async def test_a_request_without_an_answer_is_refused_as_retryable() -> None:
    answer = await status(unanswered)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "send the request again" in answer.json()["error"]
