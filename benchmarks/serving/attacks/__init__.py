"""Measures what a hostile client costs others by sending the most expensive requests per byte."""
