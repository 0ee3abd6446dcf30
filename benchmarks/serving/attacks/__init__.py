"""Measures how a hostile client affects other clients if it sends the most expensive requests per
byte."""
