"""Runs commands.py. If the folder .gpu contains Python packages for this machine, the commands
import them."""

import sys

from benchmarks.gpu import carried

if __name__ == "__main__":
    carried.enter(["-m", "benchmarks.gpu", *sys.argv[1:]])
    from benchmarks.gpu.commands import main

    sys.exit(main())
