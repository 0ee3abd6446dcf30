"""Implements KServe's V2 inference protocol over HTTP, with the extensions that Triton's clients
use."""
