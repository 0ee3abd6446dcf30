"""Every internal attribute of uvicorn on which Convoy relies. After an incompatible upgrade, these
tests fail first.

Raise uvicorn's upper bound in pyproject.toml only after these tests and all other tests pass.
"""

import ast
import asyncio
import inspect
import logging
import re
import socket
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http import flow_control, httptools_impl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import Server, ServerState

from service.http.connection import Connection
from service.http.uvicorn_adapter import AsgiCall
from tests.support import PATIENCE_S

ROOT = Path(__file__).parents[3]


def config(**options: Any) -> uvicorn.Config:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    return uvicorn.Config(app, log_config=None, lifespan="off", ws="none", **options)


def cycle(**changes: Any) -> httptools_impl.RequestResponseCycle:
    transport = asyncio.Transport()
    options: dict[str, Any] = {
        "scope": {"type": "http", "method": "GET"},
        "transport": transport,
        "flow": flow_control.FlowControl(transport),
        "logger": logging.getLogger("uvicorn.error"),
        "access_logger": logging.getLogger("uvicorn.access"),
        "access_log": False,
        "default_headers": [],
        "message_event": asyncio.Event(),
        "expect_100_continue": False,
        "keep_alive": True,
        "on_response": lambda: None,
    }
    return httptools_impl.RequestResponseCycle(**options | changes)


def parameters(call: Any) -> list[str]:
    return list(inspect.signature(call).parameters)


def test_the_installed_uvicorn_is_within_the_bounds_that_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (declared,) = [line for line in project["dependencies"] if line.startswith("uvicorn")]
    bounds = re.fullmatch(r"uvicorn>=([\d.]+),<([\d.]+)", declared)
    assert bounds, f"{declared} must be bounded on both sides"
    low, high = bounds.groups()
    numbers = [tuple(map(int, text.split("."))) for text in (low, version("uvicorn"), high)]
    assert numbers[0] <= numbers[1] < numbers[2]


def test_only_the_adapter_imports_what_uvicorn_does_not_document() -> None:
    """`uvicorn.Server` and `uvicorn.Config` are public; modules below `uvicorn` are not."""
    users = {
        file.name
        for file in (ROOT / "service").rglob("*.py")
        if "uvicorn" in (text := file.read_text(encoding="utf-8"))  # or to parse it takes long
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("uvicorn.")
    }
    assert users == {"uvicorn_adapter.py"}


def test_a_cycle_takes_and_has_what_asgi_call_uses() -> None:
    assert parameters(httptools_impl.RequestResponseCycle) == [
        *("scope", "transport", "flow", "logger", "access_logger", "access_log"),
        *("default_headers", "message_event", "expect_100_continue", "keep_alive", "on_response"),
    ]
    fresh = cycle()
    assert (fresh.body, fresh.more_body) == (bytearray(), True)
    assert (fresh.keep_alive, fresh.disconnected, fresh.response_complete) == (True, False, False)
    assert isinstance(fresh.message_event, asyncio.Event)
    assert inspect.iscoroutinefunction(fresh.run_asgi)
    assert parameters(fresh.run_asgi) == ["app"]


def test_a_cycle_can_be_subclassed_as_asgi_call_does() -> None:
    given: list[Any] = []

    async def app(_: Any, receive: Any, send: Any) -> None:
        given.extend((receive, send))

    fresh = cycle()
    fresh.disconnected = True
    asyncio.run(fresh.run_asgi(app))
    assert given == [fresh.receive, fresh.send]
    own = set(vars(AsgiCall)) - {"__init__", "__doc__", "__module__", "send"}
    assert not own & set(dir(fresh))
    assert not {"_peers", "_record"} & set(dir(fresh))
    assert {"transport", "flow", "default_headers"} <= set(vars(fresh))


def test_status_lines_are_ready_made_bytes() -> None:
    assert httptools_impl.STATUS_LINE[200] == b"HTTP/1.1 200 OK\r\n"
    assert httptools_impl.STATUS_LINE[503] == b"HTTP/1.1 503 Service Unavailable\r\n"


def test_flow_control_pauses_and_resumes() -> None:
    class Transport(asyncio.Transport):
        reading = True

        def pause_reading(self) -> None:
            self.reading = False

        def resume_reading(self) -> None:
            self.reading = True

    transport = Transport()
    flow = flow_control.FlowControl(transport)
    assert (flow.read_paused, flow.write_paused) == (False, False)
    flow.pause_reading()
    assert (flow.read_paused, transport.reading) == (True, False)
    flow.resume_reading()
    assert (flow.read_paused, transport.reading) == (False, True)
    flow.pause_writing()
    assert flow.write_paused
    flow.resume_writing()
    assert not flow.write_paused
    assert flow_control.HIGH_WATER_LIMIT > 0


def test_addresses_are_read_off_a_transport() -> None:
    class Transport(asyncio.Transport):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            found = {"peername": ("192.0.2.1", 5), "sockname": ("192.0.2.2", 80)}
            return found.get(name, default)

    transport = Transport()
    assert get_remote_addr(transport) == ("192.0.2.1", 5)
    assert get_local_addr(transport) == ("192.0.2.2", 80)


def test_a_config_has_what_connections_use() -> None:
    made = config(http=asyncio.Protocol)
    assert made.loaded is False
    made.load()
    assert made.loaded is True
    assert made.http_protocol_class is asyncio.Protocol
    assert callable(made.loaded_app)
    assert made.asgi_version == "3.0"
    assert made.root_path == ""


def test_the_state_of_a_server_has_what_connections_use() -> None:
    state = ServerState()
    assert state.total_requests == 0
    assert state.connections == set()
    assert state.tasks == set()
    assert state.default_headers == []


def test_a_server_calls_what_convoys_overrides() -> None:
    server = Server(config())
    assert inspect.iscoroutinefunction(server.startup)
    assert inspect.iscoroutinefunction(server.shutdown)
    assert parameters(server.startup) == parameters(server.shutdown) == ["sockets"]
    assert hasattr(server.capture_signals(), "__enter__")
    assert (server.should_exit, server.force_exit) == (False, False)
    assert isinstance(server.server_state, ServerState)


def test_a_server_has_what_it_accepts_connections_with() -> None:
    """The server accepts connections itself (`Acceptor`), so uvicorn gets no listening socket."""
    settings = config(http=asyncio.Protocol)
    assert settings.backlog == 2048
    settings.load()
    server = Server(settings)
    server.lifespan = settings.lifespan_class(settings)
    assert server.lifespan.state == {}
    asyncio.run(server.startup(sockets=[]))
    assert server.servers == []
    assert server.started


def test_a_server_makes_connections_with_the_arguments_that_connection_takes() -> None:
    made: list[dict[str, Any]] = []

    class Protocol(asyncio.Protocol):
        def __init__(self, **arguments: Any) -> None:
            made.append(arguments)

        def shutdown(self) -> None:
            pass

    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        settings = config(http=Protocol)
        settings.load()
        server = Server(settings)
        server.lifespan = settings.lifespan_class(settings)
        await server.startup(sockets=[listener])
        _, writer = await asyncio.open_connection(*listener.getsockname())
        while not made:
            await asyncio.sleep(0.001)
        writer.close()
        await server.shutdown(sockets=[listener])

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    assert [set(arguments) for arguments in made] == [set(parameters(Connection))]
