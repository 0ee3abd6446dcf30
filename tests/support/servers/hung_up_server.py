"""Runs a `convoy serve` that receives SIGHUP while it opens its models."""

import os
import signal
from typing import Any

from service import cli
from service.cli import listen


def main() -> None:
    """Serve until a signal."""
    opened = vars(listen)["add_models"]

    def add_models(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGHUP)
        return opened(*arguments)

    vars(listen)["add_models"] = add_models
    cli.main()
