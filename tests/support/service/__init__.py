"""Contains fakes for the tests of the service. The fakes run in the test's process."""
