"""Lets Python use the installed libraries' bytecode even if sys.pycache_prefix names another
folder."""

import os
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path


def link_libraries(prefix: Path) -> None:
    """Link the bytecode of the installed libraries into `prefix`, unless this folder exists.

    If sys.pycache_prefix is set, Python searches only that folder for bytecode. Without the links,
    it would compile 3,000 files again.
    """
    if prefix.exists():
        return
    tag = f".{sys.implementation.cache_tag}.pyc"
    for libraries in {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}:
        for folder, folders, files in os.walk(libraries):
            if folder != libraries and folder.endswith("site-packages"):
                folders.clear()  # those of the Python that an environment is made from
            if not folder.endswith("__pycache__"):
                continue
            place = prefix / Path(folder).parent.relative_to("/")
            place.mkdir(parents=True, exist_ok=True)
            for file in files:
                if file.endswith(tag):
                    with suppress(FileExistsError):  # just imported
                        os.symlink(f"{folder}/{file}", place / file)
