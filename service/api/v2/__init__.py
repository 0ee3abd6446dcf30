"""KServe's V2 inference protocol over HTTP, as Triton's clients speak it."""

from service.api.v2.routes import add_routes

__all__ = ["add_routes"]
