"""Fixtures for tests of the pages in a browser."""

from tests.support.service.browser import address, browser, page, view

__all__ = ["address", "browser", "page", "view"]
