"""Replaces a peer by an http.server, which does the same work and can misbehave."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.peers.servers.work import settings_given, work_of

SETTINGS = settings_given()
CHOICES = SETTINGS.choices
if "telemetry" in CHOICES:
    os.environ["ORT_DISABLE_TELEMETRY"] = CHOICES["telemetry"]
os.nice(CHOICES.get("nice", 0))
WORK = work_of(replace(SETTINGS, threads=CHOICES.get("threads", SETTINGS.threads)))

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"


class Handler(BaseHTTPRequestHandler):
    """Answers every POST."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    answered = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        (scores,) = WORK.scores([WORK.decode(body)])
        found = WORK.answer(scores)
        if CHOICES.get("wrong"):
            found["predictions"].reverse()
        if CHOICES.get("unsure"):
            found["predictions"][0]["probability"] -= 0.01
        data = json.dumps(found).encode()
        Handler.answered += 1
        tired = Handler.answered > CHOICES.get("answers", 10**9)
        status = "503 Service Unavailable" if tired else "200 OK"
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n"
        self.wfile.write(head.encode() + data)

    def log_message(self, *_: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A server whose queue of pending connections is longer than the default of 5."""

    request_queue_size = 64


def main() -> None:
    if CHOICES.get("dies"):
        sys.exit("the model is not to my taste")
    if CHOICES.get("never"):
        time.sleep(60)
    if "stubborn" in CHOICES:
        code = f"{STUBBORN}; time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        Path(CHOICES["stubborn"]).write_text(str(child.pid))
    with Server(("127.0.0.1", SETTINGS.port), Handler) as server:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        server.serve_forever()


if __name__ == "__main__":
    main()
