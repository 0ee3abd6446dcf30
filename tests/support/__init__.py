"""Contains code that several tests share: fakes, servers, files and cases. It contains no tests."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120  # for what takes a moment on an idle machine
