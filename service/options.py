"""What commands share: the flags that are settings, and what is logged."""

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from models import DeviceKind
from service.settings import Settings


def setting(name: str) -> Any:
    """The flag of a setting, described where the setting is."""
    field = Settings.model_fields[name]
    default = getattr(field.default, "value", field.default)
    return typer.Option(
        "--" + name.replace("_", "-"),
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


def configure_logging(*, verbose: bool) -> None:
    """Convoy's own log, and of others warnings; every request where `verbose`."""
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING
    )
    logging.getLogger("convoy").setLevel(logging.INFO)
    # What clients send wrong is answered and counted, not logged.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").setLevel(logging.INFO if verbose else logging.ERROR)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)
