"""Implements `convoy loadtest`, which sends images to a running server and measures its answers."""


class LoadTestError(Exception):
    """Says why the load test cannot start, such as an invalid answer or a missing input."""


class OptionsError(LoadTestError):
    """Says that options contradict each other; the exit status is then 2."""
