"""How listening ends: nobody who connects at that moment is reset."""

import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.http.server import turn_away


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux filters the packets of a socket")
def test_who_connects_as_listening_ends_is_refused_and_who_was_before_is_served() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.setblocking(False)
        address = listener.getsockname()
        early = socket.create_connection(address)
        turn_away(listener)
        late = pool.submit(socket.create_connection, address, 20)
        time.sleep(0.2)
        accepted, _ = listener.accept()
        with pytest.raises(BlockingIOError):  # its handshake did not begin
            listener.accept()
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            late.result()
        with early, accepted:
            accepted.settimeout(20)
            early.sendall(b"more")
            assert accepted.recv(10) == b"more"
