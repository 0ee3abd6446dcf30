"""Implements `convoy loadtest`, which sends images to a running server and measures its answers."""


class LoadTestError(Exception):
    """Says why the load test cannot start: for example, an answer is invalid or the images are
    missing."""


class OptionsError(LoadTestError):
    """Says that options contradict each other. The exit status is then 2."""
