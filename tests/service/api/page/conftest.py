"""Fixtures of a browser on a page."""

from tests.support.service.browser import address, browser, page, view

__all__ = ["address", "browser", "page", "view"]
