"""Implements `convoy loadtest`, which sends images to a running server and measures its answers."""


class LoadTestError(Exception):
    """Raised if the load test cannot start, for example because the images are missing."""


class OptionsError(LoadTestError):
    """Raised if options contradict each other. The command then exits with status 2."""
