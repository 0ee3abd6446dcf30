"""Defines questions and answers: the routes of v1 and V2, the pages, JSON schemas."""
