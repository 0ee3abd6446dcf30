"""Writes docs/settings.md from the settings' own descriptions: `make docs`."""

from pathlib import Path

from service.settings import PREFIX, Settings

HEAD = """# Settings

Each setting is a flag of `convoy serve` and an environment variable; the flag overrides the
variable. `convoy serve` has two more flags. `--set KEY=VALUE` overrides a key of
[model.toml](models.md), for example `--set size=299`, and may be repeated. `-v`, `--verbose` also
logs the HTTP server's own messages. There is no file of settings: systemd reads variables from
`/etc/convoy.env` ([systemd](systemd.md)), and Compose reads them from `.env`
([deployment](../deploy/README.md)). Convoy ignores the variables that Kubernetes sets for a Service
named `convoy` (`CONVOY_SERVICE_HOST`, `CONVOY_PORT=tcp://...`). `make docs` writes this page from
the descriptions in `service/settings.py`.

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
