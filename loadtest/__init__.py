"""`convoy loadtest`: sends images to a running server and measures its answers."""


class LoadTestError(Exception):
    """Says why the load test cannot start: no valid answer from the server, or a missing input."""


class OptionsError(LoadTestError):
    """Says that options contradict each other; the exit status is 2."""
