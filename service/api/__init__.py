"""Defines the API: the routes of v1 and V2, the pages, and the JSON schemas."""
