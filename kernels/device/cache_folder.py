"""Chooses the cache folder. It holds compiled kernels, downloads and other files that are made only
once.

Other modules use paths below FOLDER, the default folder. `placed` converts a path below FOLDER to
the same path below the chosen folder.
"""

from pathlib import Path

FOLDER = Path("~/.cache/convoy")
"""The folder if no other folder was chosen."""

_chosen = [FOLDER]


def keep_below(folder: Path) -> None:
    """Choose `folder` as the cache folder."""
    _chosen[0] = folder


def placed(path: Path) -> Path:
    """If a path is below FOLDER, return the same path below the chosen folder. Return any other
    path with ~ expanded."""
    if path.is_relative_to(FOLDER):
        path = _chosen[0] / path.relative_to(FOLDER)
    return path.expanduser()
