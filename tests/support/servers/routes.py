"""Lists an application's routes, for tests that need all of them."""

from collections.abc import Iterator
from typing import Any

from starlette.routing import Route


def posts_of(app: Any) -> set[str]:
    """Return the paths that accept a POST."""
    return {route.path for route in routes_of(app) if "POST" in (route.methods or ())}


def routes_of(router: Any) -> Iterator[Route]:
    """Return all routes of a router and of the routers that it includes."""
    for route in router.routes:
        if isinstance(route, Route):
            yield route
        elif (included := getattr(route, "original_router", None)) is not None:
            yield from routes_of(included)
