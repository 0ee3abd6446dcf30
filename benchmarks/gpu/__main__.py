"""Runs commands.py in a Python process that can import the packages in the folder .gpu."""

import sys

from benchmarks.gpu import carried

if __name__ == "__main__":
    carried.enter(["-m", "benchmarks.gpu", *sys.argv[1:]])
    from benchmarks.gpu.commands import main

    sys.exit(main())
