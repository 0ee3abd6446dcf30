"""Measures how a hostile client affects other clients. The hostile client sends requests that are
short but costly for the server."""
