"""Runs the commands (commands.py), with the packages that were carried."""

import sys

from benchmarks.gpu import carried

if __name__ == "__main__":
    carried.enter(["-m", "benchmarks.gpu", *sys.argv[1:]])
    from benchmarks.gpu.commands import main

    sys.exit(main())
