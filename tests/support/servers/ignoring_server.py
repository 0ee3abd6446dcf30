"""Runs `convoy` as a caller starts it that ignores the ends of its processes."""

import signal

from service.cli import main as convoy


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    convoy()
