"""Implements `convoy loadtest`, which sends images to a running server and measures its answers."""


class LoadTestError(Exception):
    """Says why the load test cannot start. For example, an answer is invalid or the images are
    missing."""


class OptionsError(LoadTestError):
    """Says that options contradict each other. The command then exits with status 2."""
