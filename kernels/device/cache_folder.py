"""Says where what is made or downloaded once is kept, below one folder.

Everywhere else such a place is written as a path below FOLDER, and `placed` says where that is.
"""

from pathlib import Path

FOLDER = Path("~/.cache/convoy")
"""The folder where nothing else was chosen."""

_chosen = [FOLDER]


def keep_below(folder: Path) -> None:
    """Keep everything below this folder from now on."""
    _chosen[0] = folder


def placed(path: Path) -> Path:
    """Return where a path below FOLDER is in the chosen folder, and any other with ~ expanded."""
    if path.is_relative_to(FOLDER):
        path = _chosen[0] / path.relative_to(FOLDER)
    return path.expanduser()
