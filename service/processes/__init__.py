"""HTTP and decoding in processes of their own (temporarily absent)."""

from typing import Any


class WorkersError(Exception):
    """Workers cannot be kept."""


def prepare(modules: list[str]) -> None:
    """Nothing yet."""


def run_workers(*_: Any, **__: Any) -> bool:
    """Nothing yet."""
    raise WorkersError("not yet")
