"""Tests of service/ray: without Ray, and on a real cluster if Ray is installed (extra `ray`)."""
