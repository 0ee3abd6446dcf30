"""Runs `convoy` with a short wait for idle cores. A process that reads or tests a model may first
use only idle cores. If there are none, it is replaced after 0.2 s here, instead of 3 s.

Otherwise, the time of a test would depend on other programs on the machine.
"""

from service.cli import main as convoy
from service.engine import process_pool


def main() -> None:
    """Run the command line."""
    process_pool._LOOK_S = 0.2
    convoy()
