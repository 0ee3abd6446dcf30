"""Contains servers that tests run, in this process or in one of their own."""
