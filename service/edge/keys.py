"""Reads API keys from a file with one key per line, and looks up the key of a request.

    correct-horse
    battery-staple weight=4 priority=1 repository shared-memory

`weight` is the client's share of the engine relative to other clients; the default is 1. `priority`
is the highest priority that the client may give its requests: 2 without this word, and 1 if the
word has no number. `repository` allows loading and unloading models. `shared-memory` allows
registering regions and using tensors in them. Blank lines and lines that start with # are skipped.
Logs name a key by its line number: `key 2`, or `key 2, reload 1` if line 2 had another key before
the first reload.
"""

import logging
import re
import threading
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from service.batching.policy import DEFAULT_PRIORITY
from service.fair_queue import Client, Right
from service.settings import SettingsError

# The characters that an HTTP header carries unchanged.
_SANE = re.compile(r"[!-~]+").fullmatch

# The words that may follow a key.
_WEIGHT = re.compile(r"weight=(\d{1,3}(?:\.\d{1,3})?)").fullmatch
_PRIORITY = re.compile(r"priority(?:=([1-9]))?").fullmatch
_RIGHTS = {right.value: right for right in Right}

_OTHERS_READ = 0o004

_log = logging.getLogger("convoy")


class Keys:
    """The API keys in a file."""

    def __init__(self, file: Path) -> None:
        """Read the file. Raises SettingsError if the file cannot be read, has no keys, or has an
        invalid key.
        """
        self._file = file
        self._clients = _read(file)  # by the digest of the key
        self._reloads = 0
        self._reloading = threading.Lock()

    def find(self, presented: bytes) -> Client | None:
        """Return the client of this key, or None for an unknown key. The client's name contains the
        number of the key's line.

        The lookup compares digests of keys. So the time that it takes reveals nothing about the
        keys.
        """
        return self._clients.get(sha256(presented).digest())

    def reload(self) -> None:
        """Read the file again. If the file is invalid, keep the current keys and log an error. Any
        thread may call this method.

        If the key or the words on a line have changed, the key's client gets a new name. Otherwise,
        the images in progress of the line's previous client would count as images of the new
        client.
        """
        with self._reloading:
            try:
                read = _read(self._file)
            except SettingsError as error:
                _log.error("the current API keys stay in use: %s", error)
                return
            self._reloads += 1
            self._clients = {
                digest: self._named(client, self._clients.get(digest))
                for digest, client in read.items()
            }
            _log.info("read %d API keys from %s", len(read), self._file)

    def _named(self, client: Client, before: Client | None) -> Client:
        """Return the client of a reloaded key, with a new name if its line has changed. `before` is
        the key's client before the reload."""
        if before is not None and before == client._replace(name=before.name):
            line, _, _ = before.name.partition(",")
            if line == client.name:
                return before
        return client._replace(name=f"{client.name}, reload {self._reloads}")


def _read(file: Path) -> Mapping[bytes, Client]:
    """Read the file. Return a mapping from the digest of each key to the key's client."""
    try:
        text = file.read_text("utf-8")
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingsError(f"--api-key-file: cannot read {file}: {reason}") from None
    clients = {}
    for number, line in enumerate(text.splitlines(), start=1):
        key, *rights = line.split() or [""]
        if key and not key.startswith("#"):
            where = f"--api-key-file: {file}, line {number}"
            if not _SANE(key):
                raise SettingsError(f"{where}: a key must be ASCII characters without spaces")
            clients[sha256(key.encode()).digest()] = _client(f"key {number}", rights, where)
    if not clients:
        raise SettingsError(f"--api-key-file: {file} has no key; write one per line")
    if mode & _OTHERS_READ:
        _log.warning("every user of this machine can read %s; run chmod o-r on this file", file)
    return clients


def _client(name: str, rights: Sequence[str], where: str) -> Client:
    """Return the client that the words after a key describe. Raises SettingsError with a message
    that begins with `where`, the file and the line number."""
    weight, priority, allowed = 1.0, DEFAULT_PRIORITY, set()
    for right in rights:
        if (heavy := _WEIGHT(right)) and float(heavy[1]) > 0:
            weight = float(heavy[1])
        elif high := _PRIORITY(right):
            priority = int(high[1] or 1)
        elif right in _RIGHTS:
            allowed.add(_RIGHTS[right])
        else:
            raise SettingsError(
                f"{where}: a key may be followed by weight=N (N above 0), priority=N (1 to 9), "
                f"{' and '.join(_RIGHTS)}, separated by spaces"
            )
    return Client(name, weight, priority, frozenset(allowed))
