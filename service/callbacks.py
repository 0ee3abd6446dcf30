"""Calls callbacks and logs their errors, so that an error ends nothing else."""

import asyncio
from collections.abc import Callable
from typing import Any


def call_safely(then: Callable[..., None], *outcome: Any) -> None:
    """Call a callback, and log its exception instead of raising it."""
    try:
        then(*outcome)
    except Exception as error:  # noqa: BLE001  the event loop logs it
        context = {"message": f"{then} raised", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
