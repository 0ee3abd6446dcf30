"""Runs `convoy` as on a machine without an idle core: no test of a model waits 3 s for one.

Otherwise, the time of a test would depend on other programs on the machine.
"""

from service.cli import main as convoy
from service.engine import process_pool


def main() -> None:
    """Run the command line."""
    process_pool._LOOK_S = 0.2
    convoy()
