"""Chooses the folder for all files that are made or downloaded once.

All other code names these files by paths below FOLDER; `placed` returns their paths in the chosen
folder.
"""

from pathlib import Path

FOLDER = Path("~/.cache/convoy")
"""The folder if no other folder was chosen."""

_chosen = [FOLDER]


def keep_below(folder: Path) -> None:
    """From now on keep the files that are made or downloaded once below `folder`."""
    _chosen[0] = folder


def placed(path: Path) -> Path:
    """Return a path below FOLDER as a path in the chosen folder, and any other path with ~
    expanded."""
    if path.is_relative_to(FOLDER):
        path = _chosen[0] / path.relative_to(FOLDER)
    return path.expanduser()
