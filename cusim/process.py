"""Runs the simulator in another process, and exchanges messages with it. The messages are defined
in runtime/protocol.h."""

import mmap
import os
import re
import socket
import struct
import subprocess
import tempfile
import threading
import weakref
from enum import IntEnum
from pathlib import Path
from typing import IO

from cusim import build as builds
from cusim.build import Build


class Request(IntEnum):
    """Lists the requests to the simulator. The numbers are the same as in runtime/protocol.h."""

    LOAD = 1
    ALLOCATE = 2
    FREE = 3
    LAUNCH = 4
    BEGIN = 5


class Status(IntEnum):
    """Lists the simulator's answers. The numbers are the same as in runtime/protocol.h."""

    DONE = 0
    REFUSED = 1
    FAULT = 2


class RefusedError(Exception):
    """Raised when the simulator refuses a request. Contains the reason. The simulator keeps
    running."""


class ProcessFault(Exception):  # noqa: N818  (a fault, as on a GPU)
    """Raised when a fault in a kernel has ended the simulator. Describes the fault."""


class Process:
    """Runs a simulated GPU in a separate process. After a fault, every call raises the same fault
    again."""

    def __init__(self, build: Build, memory_bytes: int) -> None:
        ours, theirs = socket.socketpair()
        file = os.memfd_create("cusim")
        os.ftruncate(file, memory_bytes)  # sparse: unused pages take no memory
        self.memory = mmap.mmap(file, memory_bytes)
        self._socket = ours
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as this)
        self._lock = threading.Lock()
        self._fault: str | None = None
        self._process = subprocess.Popen(
            [builds.runtime(build), str(theirs.fileno()), str(file), str(memory_bytes)],
            pass_fds=(theirs.fileno(), file),
            stderr=self._stderr,
            env={**os.environ, **dict(build.environment)},
        )
        theirs.close()
        os.close(file)
        self.close = weakref.finalize(self, _end, ours, self._process)
        with self._lock:
            (self.base,) = struct.unpack("<Q", self._answer())

    def cpu_seconds(self) -> float:
        """Return the processor time that the process has used, in seconds."""
        nanoseconds = Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[0]
        return int(nanoseconds) / 1e9

    def ask(self, request: Request, payload: bytes) -> bytes:
        """Send a request and return the answer. Raises RefusedError or ProcessFault."""
        with self._lock:
            if self._fault is None:
                try:
                    self._socket.sendall(struct.pack("<II", request, len(payload)) + payload)
                except OSError:
                    self._die()
                return self._answer()
            raise ProcessFault(self._fault)

    def _answer(self) -> bytes:
        header = self._receive(8)
        status, size = struct.unpack("<II", header)
        answer = self._receive(size)
        if status == Status.FAULT:
            self._fault = _with_line(answer.decode())
            raise ProcessFault(self._fault)
        if status == Status.REFUSED:
            raise RefusedError(answer.decode())
        return answer

    def _receive(self, size: int) -> bytes:
        parts = []
        while size > 0:
            try:
                part = self._socket.recv(min(size, 1 << 20))
            except ConnectionResetError:
                part = b""
            if not part:
                self._die()
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _die(self) -> None:
        """Raise ProcessFault, because the process has ended without an answer.

        The message is the text on the process's standard error, such as a sanitizer's report. If
        there is no text, the message is the exit status.
        """
        status = self._process.wait()
        self._stderr.seek(0)
        report = self._stderr.read().decode(errors="replace").strip()
        self._fault = report or f"the simulator ended with status {status}"
        raise ProcessFault(self._fault)


def _end(ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
    ours.close()
    process.kill()  # it may be in a kernel that never ends, and has nothing to save
    process.wait()


_CODE_ADDRESS = re.compile(r" \[(.+)\+(0x[0-9a-f]+)\]$")


def _with_line(fault: str) -> str:
    """Return the text of a fault. If the text ends with an address in a library, the address is
    replaced by the source file and line."""
    found = _CODE_ADDRESS.search(fault)
    if found is None:
        return fault
    looked_up = subprocess.run(
        ["addr2line", "-e", found[1], found[2]], capture_output=True, text=True, check=False
    ).stdout.strip()
    path, _, line = looked_up.partition(":")
    known = line and not line.startswith("?")
    where = f", at {Path(path).name}:{line.split()[0]}" if known else ""
    return fault[: found.start()] + where
