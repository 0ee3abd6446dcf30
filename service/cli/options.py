"""What commands share: the flags that are settings, and what is logged."""

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from models import DeviceKind
from service.settings import Settings
from service.telemetry.logs import LineHandler, LogFormat, TextFormatter, line_writer


def setting(name: str) -> Any:
    """The flag of a setting, described where the setting is."""
    field = Settings.model_fields[name]
    default = getattr(field.default, "value", field.default)
    flag = "--" + name.replace("_", "-")
    if default is True:
        flag += flag.replace("--", "/--no-", 1)
    return typer.Option(
        flag,
        help=field.description if default is None else f"{field.description} [{default}]",
        show_default=False,
    )


Model = Annotated[Path, typer.Argument(help="ONNX model file, or `digits`, the built-in one.")]
Preset = Annotated[str | None, setting("preset")]
Labels = Annotated[Path | None, setting("labels")]
Device = Annotated[DeviceKind | None, setting("device")]
MaxBatch = Annotated[int | None, setting("max_batch")]
Threads = Annotated[int | None, setting("threads")]
Tuning = Annotated[Path | None, setting("tuning")]
ExternalData = Annotated[bool | None, setting("external_data")]
Expectations = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="What the model expects of its pixels, over its model.toml: any key of that file, "
        "such as size=299 or channels=bgr. May be given more than once.",
    ),
]


def configure_logging(*, verbose: bool, log_format: LogFormat | None = None) -> None:
    """Convoy's own log, and of others warnings, to standard error; uvicorn's too where `verbose`.

    With a format, which a server has, nothing waits for whoever reads it.
    """
    handler: logging.Handler
    if log_format is None:
        handler = logging.StreamHandler()
        handler.setFormatter(TextFormatter())
    else:
        handler = LineHandler(line_writer(log_format))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("convoy").setLevel(logging.INFO)
    # What clients send wrong is answered and counted, not logged.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").setLevel(logging.INFO if verbose else logging.ERROR)
