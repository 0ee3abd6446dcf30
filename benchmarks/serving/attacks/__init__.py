"""Measures what one hostile client costs the others, by the requests that cost most a byte."""
