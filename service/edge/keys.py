"""API keys, read from a file with one key a line and compared in constant time.

Blank lines and lines that start with # are skipped. Logs name a key by its line number.
"""

import hmac
import logging
import re
from hashlib import sha256
from pathlib import Path

from service.settings import SettingsError

# The characters that an HTTP header carries unchanged.
_SANE = re.compile(r"[!-~]+").fullmatch

_OTHERS_READ = 0o004

_log = logging.getLogger("convoy")


class Keys:
    """The API keys of a file."""

    def __init__(self, file: Path) -> None:
        """SettingsError: the file cannot be read, has no key, or has one that fits in no header."""
        self._file = file
        self._digests = _read(file)

    def find(self, presented: bytes) -> str | None:
        """The line number of a key; None if the file does not have it."""
        digest = sha256(presented).digest()  # equally long for every key
        found = None
        for line, expected in self._digests:  # no early exit: the time must not depend on the key
            if hmac.compare_digest(digest, expected):
                found = line
        return found

    def reload(self) -> None:
        """Read the file again; keep the current keys if it cannot be used."""
        try:
            self._digests = _read(self._file)
        except SettingsError as error:
            _log.error("keeping the current API keys: %s", error)
        else:
            _log.info("read %d API keys from %s", len(self._digests), self._file)


def _read(file: Path) -> list[tuple[str, bytes]]:
    """The line number and digest of each key."""
    try:
        text = file.read_text("utf-8")
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingsError(f"--api-key-file: cannot read {file}: {reason}") from None
    digests = []
    for number, line in enumerate(text.splitlines(), start=1):
        key = line.strip()
        if key and not key.startswith("#"):
            if not _SANE(key):
                raise SettingsError(
                    f"--api-key-file: {file}, line {number}: a key is ASCII without spaces"
                )
            digests.append((str(number), sha256(key.encode()).digest()))
    if not digests:
        raise SettingsError(f"--api-key-file: {file} has no key; write one a line")
    if mode & _OTHERS_READ:
        _log.warning("every user of this machine can read %s; chmod o-r it", file)
    return digests
