"""Says where files that are made or downloaded once are kept: below one folder.

All other code names such a file by a path below FOLDER, which `placed` moves to the chosen folder.
"""

from pathlib import Path

FOLDER = Path("~/.cache/convoy")
"""The folder, unless another one was chosen."""

_chosen = [FOLDER]


def keep_below(folder: Path) -> None:
    """Keep everything below this folder from now on."""
    _chosen[0] = folder


def placed(path: Path) -> Path:
    """Return where a path below FOLDER is in the chosen folder, and any other with ~ expanded."""
    if path.is_relative_to(FOLDER):
        path = _chosen[0] / path.relative_to(FOLDER)
    return path.expanduser()
