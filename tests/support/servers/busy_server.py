"""Runs `convoy` as on a machine without an idle core. So no test of a model waits up to 3 s for an
idle core.

Otherwise, the time of a test would depend on other programs on the machine.
"""

from service.cli import main as convoy
from service.engine import process_pool


def main() -> None:
    """Run the command line."""
    process_pool._LOOK_S = 0.2
    convoy()
