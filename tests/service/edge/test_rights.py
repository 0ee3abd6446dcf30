"""Permission to change models or to use shared memory: only with a key that has this permission,
and never for pages of other sites."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.api.app import create_app
from service.batching.policy import DEFAULT_PRIORITY
from service.edge.edge import Limits
from service.edge.keys import Keys
from service.fair_queue import Right
from service.hosting.regions import Regions
from service.http.server import http_settings
from service.settings import load_settings
from tests.support import PATIENCE_S
from tests.support.servers.listening import OpenPort, listening, post
from tests.support.servers.routes import posts_of
from tests.support.service.fakes import make_repository
from tests.support.service.shared_memory import shared_memory

pytestmark = pytest.mark.anyio

# Every route of a POST: those that change what the server does to others, and the rest.
CHANGES = {
    "/v2/repository/models/{model}/load": Right.REPOSITORY,
    "/v2/repository/models/{model}/unload": Right.REPOSITORY,
    "/v2/systemsharedmemory/region/{region}/register": Right.SHARED_MEMORY,
    "/v2/systemsharedmemory/region/{region}/unregister": Right.SHARED_MEMORY,
    "/v2/systemsharedmemory/unregister": Right.SHARED_MEMORY,
}
ANSWERS = {
    "/v1/classify",
    "/v1/embeddings",
    "/v1/models/{model}/classify",
    "/v1/models/{model}/embeddings",
    "/v1/models/{model}/pixels",
    "/v2/repository/index",
    "/v2/models/{model}/infer",
    "/v2/models/{model}/versions/{version}/infer",
    # These are refused, whoever asks, or do nothing.
    "/v2/cudasharedmemory/region/{region}/register",
    "/v2/cudasharedmemory/region/{region}/unregister",
    "/v2/cudasharedmemory/unregister",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/{model}/trace/setting",
}

FOREIGN = (
    ("Origin: https://other.example",),
    ("Origin: null",),
    ("Origin: http://[",),
    ("Origin: ",),
    ("Origin: http://127.0.0.1:1",),
    ("Sec-Fetch-Site: cross-site",),
    ("Sec-Fetch-Site: same-site",),
)
REBOUND = (
    *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"),
    *("evil.example@127.0.0.1", "127.0.0.1#.evil.example", "127.0.0.1/evil.example", "[::1"),
)


class Changed:
    """Records the models that clients load and unload."""

    by_clients = True

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def load(self, name: str) -> dict[str, Any]:
        self.calls.append(f"load {name}")
        return {"name": name}

    async def unload(self, name: str) -> None:
        self.calls.append(f"unload {name}")

    def start(self) -> None: ...

    def stop(self) -> None: ...


@pytest.fixture
def memory() -> Iterator[Path]:
    with shared_memory(b"\xaa" * 64) as file:
        yield file


@asynccontextmanager
async def convoy(**options: Any) -> AsyncIterator[OpenPort]:
    repository: Any = make_repository()
    repository.regions = repository.models["fake"].regions = Regions(1000)
    repository.changes = Changed()
    await repository.warm_up()
    app = create_app(repository)
    async with listening(app, endpoints=app.endpoints, **options) as server:
        server.repository = repository
        yield server
    await repository.close(PATIENCE_S)


def request_to(path: str, *headers: str, host: str = "", file: str = "") -> bytes:
    """Return a valid POST for the path."""
    asked = {"key": file, "offset": 0, "byte_size": 64} if path.endswith("/register") else {}
    data = post(json.dumps(asked).encode(), *headers, path=path.replace("{model}", "fake"))
    return data.replace(b"Host: convoy", b"Host: " + host.encode(), 1) if host else data


def infer_into(region: str, *headers: str) -> bytes:
    tensor = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 1, 1], "data": [7]}
    shared = {"shared_memory_region": region, "shared_memory_byte_size": 64}
    asked = {"inputs": [tensor], "outputs": [{"name": "scores", "parameters": shared}]}
    return post(json.dumps(asked).encode(), *headers, path="/v2/models/fake/infer")


async def test_each_route_of_a_post_is_known_to_change_something_or_not() -> None:
    async with convoy() as server:
        posts = posts_of(create_app(server.repository))
    assert posts == {*CHANGES, *ANSWERS}


@pytest.mark.parametrize("headers", FOREIGN)
async def test_a_page_of_another_site_changes_nothing(
    headers: tuple[str, ...], memory: Path
) -> None:
    async with convoy() as server:
        register = "/v2/systemsharedmemory/region/r/register"
        assert (await server.ask(request_to(register, file=memory.name))).status == 200
        for path in CHANGES:
            reply = await server.ask(request_to(path, *headers, file=memory.name))
            assert "pages of other sites may not" in reply.error(403), path
        assert "pages of other sites" in (await server.ask(infer_into("r", *headers))).error(403)
        assert memory.read_bytes() == b"\xaa" * 64
        assert [region["name"] for region in server.repository.regions.status()] == ["r"]
        assert not server.repository.changes.calls
        assert (await server.ask(post(b"7", *headers))).status == 200  # which changes nothing
        assert (await server.ask(infer_into("r"))).status == 200
        assert memory.read_bytes() != b"\xaa" * 64


async def test_the_servers_own_page_may(memory: Path) -> None:
    async with convoy(limits=Limits(hosts=frozenset())) as server:
        for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST"):
            own = (f"Origin: http://{host}", "Sec-Fetch-Site: same-origin")
            for path in CHANGES:
                reply = await server.ask(request_to(path, *own, host=host, file=memory.name))
                assert reply.status == 200, (path, host, reply)


@pytest.mark.parametrize("host", REBOUND)
async def test_a_name_that_leads_here_is_not_the_servers(host: str, memory: Path) -> None:
    limits = Limits(hosts=frozenset({"mine.example"}))
    async with convoy(limits=limits) as server:
        for path in CHANGES:
            for headers in ((f"Origin: http://{host}", "Sec-Fetch-Site: same-origin"), ()):
                asked = request_to(path, *headers, host=host, file=memory.name)
                assert "--hosts" in (await server.ask(asked)).error(403)
            mine = request_to(path, "Origin: http://mine.example", host="Mine.example:80")
            assert "pages of other sites" in (await server.ask(mine)).error(403)
        mine = request_to("/v2/repository/models/{model}/load", host="Mine.example:80")
        assert (await server.ask(mine)).status == 200


async def test_a_key_has_only_the_rights_that_its_line_names(tmp_path: Path, memory: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("plain\nmodels repository\nmemory shared-memory\n")
    file.chmod(0o600)
    allowed = {"models": Right.REPOSITORY, "memory": Right.SHARED_MEMORY, "plain": None}
    async with convoy(keys=Keys(file), limits=Limits(hosts=frozenset())) as server:
        for key, right in allowed.items():
            sent = f"X-API-Key: {key}"
            for path, needed in CHANGES.items():
                asked = request_to(path, sent, file=memory.name, host="any.example")
                reply = await server.ask(asked)
                if right is needed:
                    assert reply.status == 200, (key, path)
                else:
                    assert f"has the word `{needed.value}`" in reply.error(403), (key, path)
            foreign = request_to(next(iter(CHANGES)), sent, "Origin: https://other.example")
            assert "pages of other sites" in (await server.ask(foreign)).error(403)


def limits_of(**flags: str) -> Limits:
    application: Any = None  # which nothing calls
    return http_settings(application, load_settings(flags, {})).edge.limits


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_without_keys_this_machines_clients_have_rights_but_no_priority(host: str) -> None:
    limits = limits_of(host=host, hosts="A.example,b")
    assert limits.rights == frozenset(Right)
    assert limits.highest_priority == DEFAULT_PRIORITY  # a proxy's clients come from here, too
    assert limits.hosts == frozenset({host, "a.example", "b"})


def test_without_keys_clients_of_a_server_that_others_reach_have_none() -> None:
    limits = limits_of(host="0.0.0.0")
    assert (limits.rights, limits.highest_priority) == (frozenset(), DEFAULT_PRIORITY)


async def test_a_wrong_key_is_called_unknown_and_a_missing_one_required(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("right\n")
    file.chmod(0o600)
    async with convoy(keys=Keys(file)) as server:
        for headers, says in (
            (("X-API-Key: wrong",), "this API key is not known"),
            (("Authorization: Bearer wrong",), "this API key is not known"),
            (("X-API-Key: ",), "an API key is required"),
            ((), "an API key is required"),
        ):
            assert (await server.ask(post(b"7", *headers))).error(401).startswith(says)
