"""Contains servers that tests run. Some run in the test's process, and some in a separate
process."""
