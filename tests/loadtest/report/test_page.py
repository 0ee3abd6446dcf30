"""The report as one HTML file."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import import_module
from typing import Any

import pytest

from loadtest.answers import PHASES
from loadtest.subject import Subject
from tests.loadtest.report.measured import GOOD, run

FULL = replace(GOOD, phases_ms={name: {"p50": 1.0, "p99": 2.0} for name in PHASES})


@pytest.fixture(scope="module")
def page() -> Any:
    """Return the module that writes pages, which only processes that run these tests import."""
    return import_module("loadtest.report.page")


class Tags(HTMLParser):
    """The tags of a page, and the targets of its links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.leads_to: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.leads_to += [value or "" for name, value in attrs if name.endswith(("href", "src"))]


def test_the_report_has_plots_tables_and_conditions_of_every_run(page: Any) -> None:
    text = page.as_html([run("this run", FULL), run("before", FULL)], {"url": "http://x"}, 50.0)
    assert Tags(text).names.count("svg") == 2
    assert len(re.findall(r"(?m)50/s +500 ", text)) == 2
    assert "<h2>before: digits, cpu (ONNX Runtime 1.23), EPYC, 2 cores</h2>" in text
    assert "<dt>url</dt><dd>http://x</dd>" in text


def test_the_report_needs_nothing_else_and_runs_nothing(page: Any) -> None:
    tags = Tags(page.as_html([run("this run", FULL)], {}))
    assert not {"script", "link", "img", "iframe"} & set(tags.names)
    assert [each for each in tags.leads_to if not each.startswith("#")] == []


def test_what_the_server_says_is_text_in_the_report(page: Any) -> None:
    text = page.as_html([run("this run", FULL, subject=Subject("<script>alert(1)</script>"))], {})
    assert "<script>" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
    assert "script" not in Tags(text).names
