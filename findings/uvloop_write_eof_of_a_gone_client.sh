#!/usr/bin/env bash
# uvloop 0.23.0 and asyncio, Python 3.11: after a client has left, write_eof() behaves in opposite
# ways.
#
# uvloop says that it replaces asyncio's event loop. Two servers pause reading, and their client
# resets the connection. If the server then half-closes the connection with write_eof(), asyncio
# raises OSError into the protocol, and uvloop returns. If the loop had noticed the reset before,
# asyncio returns, and uvloop raises RuntimeError. So a protocol that was tested on one of the loops
# fails on the other, and needs both `except` clauses.
# Seen here:
#     asyncio, reading paused: OSError
#     asyncio, reading: returns
#     uvloop, reading paused: returns
#     uvloop, reading: RuntimeError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check uvloop==0.23.0
said=$("$folder/venv/bin/python" - <<'PY'
import asyncio
import socket
import struct

import uvloop


async def outcome(pauses: bool) -> str:
    loop = asyncio.get_running_loop()
    told: asyncio.Future[str] = loop.create_future()

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            if pauses:
                self.transport.pause_reading()
            loop.call_later(0.3, self.end)

        def end(self) -> None:
            try:
                self.transport.write_eof()
            except Exception as error:
                told.set_result("OSError" if isinstance(error, OSError) else type(error).__name__)
            else:
                told.set_result("returns")
            self.transport.abort()

    server = await loop.create_server(Server, "127.0.0.1", 0)
    client = socket.create_connection(server.sockets[0].getsockname())
    client.send(b"x")
    await asyncio.sleep(0.1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()  # with a reset
    return await told


for name, run in (("asyncio", asyncio.run), ("uvloop", uvloop.run)):
    for pauses in (True, False):
        print(f"{name}, reading{' paused' if pauses else ''}:", run(outcome(pauses)))
PY
)
echo "$said"
expected='asyncio, reading paused: OSError
asyncio, reading: returns
uvloop, reading paused: returns
uvloop, reading: RuntimeError'
[[ "$said" == "$expected" ]]
