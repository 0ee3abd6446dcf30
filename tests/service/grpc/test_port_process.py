"""`convoy serve --grpc-port` in separate processes."""

import socket
import sys

import pytest

from service.cli.listen import _with_grpc_port
from service.settings import Settings, SettingsError
from tests.support.command_line import Run


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
