"""Tests of the container files and of packaging, which are not Python modules."""
