"""Measures how a hostile client affects other clients. The hostile client sends the requests that
cost a server most per byte."""
