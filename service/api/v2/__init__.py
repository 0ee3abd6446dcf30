"""Implements KServe's V2 inference protocol over HTTP, with the extensions that Triton's clients
use."""

from service.api.v2.parse import REQUEST_SCHEMAS
from service.api.v2.routes import add_routes, endpoints_of

__all__ = ["REQUEST_SCHEMAS", "add_routes", "endpoints_of"]
