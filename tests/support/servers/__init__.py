"""Contains servers that tests run, in this process or in a separate process."""
