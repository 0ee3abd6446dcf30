"""Sets and returns the cache folder. This folder holds compiled kernels and downloads, so that a
later process need not compile or download them again.

Other modules use paths below FOLDER, the default folder. `placed` converts a path below FOLDER to
the same path below the chosen folder.
"""

from pathlib import Path

FOLDER = Path("~/.cache/convoy")
"""The folder if no other folder was chosen."""

_chosen = [FOLDER]


def keep_below(folder: Path) -> None:
    """Use `folder` as the cache folder of this process, instead of FOLDER."""
    _chosen[0] = folder


def placed(path: Path) -> Path:
    """If a path is below FOLDER, return the same path below the chosen folder. Return any other
    path with ~ expanded."""
    if path.is_relative_to(FOLDER):
        path = _chosen[0] / path.relative_to(FOLDER)
    return path.expanduser()
