"""API keys: a file with one a line, compared so that time tells nothing about them.

Blank lines and lines that begin with # are skipped. A key is told apart in logs by its line.
"""

import hmac
import logging
import re
from hashlib import sha256
from pathlib import Path

# What an HTTP header carries unchanged.
_SANE = re.compile(r"[!-~]+").fullmatch

_OTHERS_READ = 0o004

_log = logging.getLogger("convoy")


class KeysError(ValueError):
    """The file of API keys cannot be used; the message names it."""


class Keys:
    """The keys of a file, which may be read again."""

    def __init__(self, file: Path) -> None:
        """KeysError: it cannot be read, has no key, or one that no header could carry."""
        self._file = file
        self._digests = _read(file)

    def find(self, presented: bytes) -> str | None:
        """In which line of the file the key is; None if in none."""
        digest = sha256(presented).digest()  # of one length, whatever is presented
        found = None
        for line, expected in self._digests:  # always all of them
            if hmac.compare_digest(digest, expected):
                found = line
        return found

    def reload(self) -> None:
        """Read the file again; where it cannot be used, the keys stay what they were."""
        try:
            self._digests = _read(self._file)
        except KeysError as error:
            _log.error("the API keys stay what they were: %s", error)
        else:
            _log.info("%d API keys were read from %s", len(self._digests), self._file)


def _read(file: Path) -> list[tuple[str, bytes]]:
    try:
        text = file.read_text("utf-8")
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise KeysError(f"{file} cannot be read: {reason}") from None
    digests = []
    for number, line in enumerate(text.splitlines(), start=1):
        key = line.strip()
        if not key or key.startswith("#"):
            continue
        if not _SANE(key):
            raise KeysError(
                f"{file}, line {number} is no key: it may have no spaces, and ASCII characters only"
            )
        digests.append((str(number), sha256(key.encode()).digest()))
    if not digests:
        raise KeysError(f"{file} has no key; write one a line")
    if mode & _OTHERS_READ:
        _log.warning("%s can be read by everybody on this machine; chmod o-r it", file)
    return digests
