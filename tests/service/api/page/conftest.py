"""Fixtures of a browser on a page."""

from tests.support.service.browser import address, browser, page

__all__ = ["address", "browser", "page"]
