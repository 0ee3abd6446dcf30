"""Compares Convoy's answers with the answers of the exporters' own pipelines."""
