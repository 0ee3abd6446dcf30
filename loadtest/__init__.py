"""`convoy loadtest`: sends images to a running server and measures its answers."""


class LoadTestError(Exception):
    """The load test cannot start: no server answers as it should, or an input is missing."""


class OptionsError(LoadTestError):
    """Options that do not go together; the exit status is 2."""
