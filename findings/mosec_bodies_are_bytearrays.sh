#!/usr/bin/env bash
# mosec 0.9.8, Python 3.11: Worker.deserialize is annotated `data: bytes`, and gets a bytearray.
#
# Code that follows the annotation breaks, or takes another branch without a word: a bytearray
# cannot be hashed (so it is no key of a cache), and `isinstance(data, bytes)` is False.
# Seen here:
#     annotated bytes, given bytearray, hashable: no
set -euo pipefail
folder=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mosec==0.9.8
cat >"$folder/server.py" <<'PY'
from collections.abc import Hashable

from mosec import Server, Worker


class Tell(Worker):
    def deserialize(self, data: bytes) -> str:
        hashable = "yes" if isinstance(data, Hashable) else "no"
        annotated = Worker.deserialize.__annotations__["data"]
        return f"annotated {getattr(annotated, '__name__', annotated)}, given {type(data).__name__}, hashable: {hashable}"

    def forward(self, data: str) -> str:
        return data


if __name__ == "__main__":
    server = Server()
    server.append_worker(Tell)
    server.run()
PY
cd "$folder"
port=$("$folder/venv/bin/python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$folder/venv/bin/python" server.py --address 127.0.0.1 --port "$port" >"$folder/log" 2>&1 &
server=$!
said=$("$folder/venv/bin/python" - "$port" <<'PY'
import sys, time, urllib.request

for _ in range(300):
    try:
        print(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/inference", b"abc").read().decode())
        break
    except OSError:
        time.sleep(0.1)
PY
)
echo "$said"
[[ "$said" == *"annotated bytes, given bytearray, hashable: no"* ]]
