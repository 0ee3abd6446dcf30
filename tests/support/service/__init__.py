"""Contains fakes for the tests of the service, in process."""
