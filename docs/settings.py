"""Writes docs/settings.md from the settings' own descriptions: `make docs`."""

from pathlib import Path

from service.settings import PREFIX, Settings

HEAD = """# Settings

Each is a flag of `convoy serve` and an environment variable. A flag overrides the variable.
Two flags are no settings: `--set KEY=VALUE` overrides a key of [model.toml](models.md), as
`--set size=299`, and may be repeated; `-v`, `--verbose` logs the HTTP server's own messages, too.
The variables that Kubernetes sets for a Service named `convoy` (`CONVOY_SERVICE_HOST`,
`CONVOY_PORT=tcp://...`) are no settings, and are ignored.
`make docs` writes this page from the descriptions in `service/settings.py`.

| flag | variable | default | meaning |
| --- | --- | --- | --- |
"""


def page() -> str:
    """Return the page, with a row for each setting."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = getattr(field.default, "value", field.default)
        flag = "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
        text = " ".join((field.description or "").split()).replace("|", "\\|")
        shown = "" if default is None else f"`{str(default).lower()}`"
        rows.append(f"| `{flag}` | `{PREFIX}{name.upper()}` | {shown} | {text} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    Path(__file__).with_suffix(".md").write_text(page(), encoding="utf-8")
