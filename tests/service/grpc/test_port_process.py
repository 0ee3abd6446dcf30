"""`convoy serve --grpc-port` in processes of its own."""

import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from service.cli.listen import _with_grpc_port
from service.settings import Settings, SettingsError
from tests.support.command_line import Run
from tests.support.servers.several_models import announced
from tests.support.service.triton import files


def listeners(port: int) -> set[str]:
    """The processes that listen at a port."""
    wanted = re.compile(rf":{port:04X} [0:]+ 0A ")
    entries = Path("/proc/net/tcp").read_text("ascii") + Path("/proc/net/tcp6").read_text("ascii")
    inodes = {entry.split()[9] for entry in entries.splitlines() if wanted.search(entry)}
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it has ended, or another's
            if link.readlink().name.removeprefix("socket:[").rstrip("]") in inodes:
                found.add(link.parts[2])
    return found


def test_every_worker_listens_at_the_one_port() -> None:
    with announced("--workers", "2", "--grpc-port", "0") as line:
        port = re.search(r" by gRPC at (127\.0\.0\.1:\d+) ", line)
        assert port, line

        def ask(digit: int) -> int:
            own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
            with closing(triton.InferenceServerClient(port[1], channel_args=own)) as client:
                inputs = [tensor.by("grpc") for tensor in files(digit)]
                return int(client.infer("digits", inputs).as_numpy("logits").argmax())

        sent = [number % 10 for number in range(40)]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, sent)) == sent
        assert len(listeners(int(port[1].rpartition(":")[2]))) == 2


def test_a_port_in_use_ends_with_one_line_and_status_1(convoy: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, error = convoy("serve", "--port", "0", "--grpc-port", str(port))
    assert status == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in error
    assert "--grpc-port" in error


def test_without_grpcio_the_setting_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "service.grpc.port", None)
    with pytest.raises(SettingsError, match=r"--grpc-port: grpcio is not installed"):
        _with_grpc_port(Settings(grpc_port=8001))
    assert _with_grpc_port(Settings()).grpc_port is None
