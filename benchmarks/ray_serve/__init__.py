"""Convoy on Ray Serve, measured: `python -m benchmarks.ray_serve`. Needs the extra `ray`."""
