"""What no well-meaning client sends: pipelines without end, lengths that are none, upgrades."""

import asyncio
from typing import Any

import pytest

from service.keys import Keys
from tests.service.client import until
from tests.service.listening import get, listening
from tests.service.test_edge_access import convoy, keys

pytestmark = pytest.mark.anyio

__all__ = ["keys"]  # a fixture


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return ("asyncio", {"use_uvloop": request.param})


async def test_a_client_that_leaves_with_more_in_the_pipeline_is_not_worked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[str] = []
    asked = asyncio.Event()

    async def app(_: Any, receive: Any, send: Any) -> None:
        await receive()
        asked.set()
        told.append((await receive())["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async with listening(app) as server:
        client = await server.send(get("/"))
        await asked.wait()
        client.send(get("/"))
        (connection,) = server.connections
        await until(lambda: bool(connection.pipeline))  # type: ignore[union-attr]
        connection.transport.abort()
        await until(lambda: bool(told))
        assert [entry.status for entry in server.entries] == [499, 499]
    assert told == ["http.disconnect"]
    assert not caplog.records


_ZEROS = "Content-Length: " + "0" * 5000


@pytest.mark.parametrize("lane", [True, False], ids=["lane", "asgi"])
async def test_a_length_of_a_thousand_zeros_is_a_length(lane: bool) -> None:
    async with convoy(lane=lane) as server:
        for path, status in {"/v1/classify": 200, "/v2/repository/index": 400}.items():
            request = get(path, f"{_ZEROS}1", method="POST") + b"7"
            assert (await server.ask(request)).status == status
        request = get("/nowhere", f"{_ZEROS}1", method="POST") + b"7"
        assert (await server.ask(request)).status == 404


async def test_a_length_of_a_thousand_zeros_needs_a_key_too(keys: Keys) -> None:
    async with convoy(keys=keys) as server:
        request = get("/v1/classify", f"{_ZEROS}1", method="POST") + b"7"
        assert (await server.ask(request)).status == 401
