"""Compares Convoy's answers with those of the exporters' own pipelines."""
