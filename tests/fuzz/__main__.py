"""python -m tests.fuzz TARGET [--seconds N] [--keep FOLDER]: search for inputs that break a parser.

Exit status 0: no input was found. Otherwise, the input is in the folder, by default the target's
corpus.
"""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["service"]):
    from tests.fuzz.targets import CORPUS, TARGETS, try_input

MOST_MEMORY_MB = 1024
MOST_BYTES = 65_536


def main() -> None:
    """Fuzz until the time is over, or an input is found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    kept = options.keep or CORPUS / options.target
    logging.disable(logging.ERROR)  # a log line for each input would be all that is done
    with tempfile.TemporaryDirectory() as grown:
        flags = [
            f"-max_total_time={options.seconds}",
            f"-rss_limit_mb={MOST_MEMORY_MB}",
            f"-max_len={MOST_BYTES}",
            f"-artifact_prefix={kept}/",
            "-timeout=10",
            "-verbosity=0",
            "-print_final_stats=1",  # how many inputs were tried
        ]
        atheris.Setup(
            [sys.argv[0], *flags, grown, str(CORPUS / options.target)],
            lambda data: try_input(options.target, data),
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
