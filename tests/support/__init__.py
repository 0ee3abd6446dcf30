"""Contains the shared parts of tests: fakes, servers, files, cases; no tests."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120  # for what takes a moment on an idle machine
