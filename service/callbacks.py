"""Calling those who asked to be told."""

import asyncio
from collections.abc import Callable
from typing import Any


def call_safely(then: Callable[..., None], *outcome: Any) -> None:
    """Tell a listener, whose own fault must not reach who tells, nor other listeners."""
    try:
        then(*outcome)
    except Exception as error:  # noqa: BLE001  the event loop logs it
        context = {"message": f"{then} raised", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
