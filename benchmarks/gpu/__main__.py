"""Runs commands.py, with the Python packages that `carry` packed, if there are any."""

import sys

from benchmarks.gpu import carried

if __name__ == "__main__":
    carried.enter(["-m", "benchmarks.gpu", *sys.argv[1:]])
    from benchmarks.gpu.commands import main

    sys.exit(main())
