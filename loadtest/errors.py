"""What ends a load test before it has measured anything."""


class LoadTestError(Exception):
    """The server cannot be asked, or something that is needed is not there."""
