"""Writes a report as one HTML file with SVG plots, tables and the conditions of the test. The file
contains no scripts."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from io import StringIO
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console, RenderableType

from loadtest.report.plots import latency_plot, phase_plot, title
from loadtest.report.record import Run
from loadtest.report.text import as_table
from models import __version__

_STYLE = """
body { max-width: 64rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
svg { max-width: 100%; height: auto; } pre { overflow-x: auto; font-size: .8rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; } dd { margin: 0; }
"""

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
<h1>{title}</h1>
<p>{date}, Convoy {version}</p>
{body}
</html>
"""


def as_html(
    runs: Sequence[Run], conditions: Mapping[str, Any], bound_ms: float | None = None
) -> str:
    """Return a page with plots of all runs and the tables of each run. The page lists the
    `conditions` of the first run."""
    parts = ["<h2>Latency</h2>", _svg(latency_plot(runs, bound_ms))]
    if any(step.phases_ms for run in runs for step in run.found.steps):
        parts += ["<h2>Time per phase</h2>", _svg(phase_plot(runs))]
    for run in runs:
        parts += [f"<h2>{escape(run.name)}: {escape(str(run.subject))}</h2>"]
        parts += [f'<pre tabindex="0">{_text(as_table(run.found))}</pre>']
    rows = (
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>"
        for name, value in conditions.items()
        if value is not None
    )
    parts += ["<h2>Conditions</h2>", f"<dl>{''.join(rows)}</dl>"]
    heading = escape(title(runs[:1]) or "Load test")
    date = datetime.now(UTC).isoformat(" ", timespec="minutes")
    return _PAGE.format(
        title=heading, style=_STYLE, date=date, version=__version__, body="\n".join(parts)
    )


def _svg(figure: Figure) -> str:
    file = StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]


def _text(table: RenderableType) -> str:
    console = Console(file=StringIO(), record=True, width=200)
    console.print(table)
    lines = console.export_text().splitlines()
    return escape("\n".join(line.rstrip() for line in lines))
