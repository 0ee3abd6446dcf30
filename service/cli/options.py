"""Defines the flags that commands share."""

import inspect
from collections.abc import Callable
from enum import Enum
from functools import wraps
from glob import escape
from math import nan
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from models import PRESETS, ModelFileError
from service.settings import BUILT_IN_NAME, Settings, called_by_make, load_settings

Expectations = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the model's model.toml, such as size=299 or channels=bgr. "
        "Repeatable.",
    ),
]


def number_from_0_to_1(given: str) -> float:
    """Parse a number from 0 to 1. Typer's own check would reject nan with the message that it is
    too large."""
    number = _number(given)
    if not 0 <= number <= 1:
        raise typer.BadParameter(f"{given} is not allowed; it must be a number from 0 to 1")
    return number


def number_from_0(given: str) -> float:
    """Parse a number that is not negative. inf is allowed."""
    number = _number(given)
    if not number >= 0:
        raise typer.BadParameter(f"{given} is not allowed; it must be a number of at least 0")
    return number


def _number(given: str) -> float:
    try:
        return float(given)
    except ValueError:
        return nan


def with_settings(
    *names: str, model_required: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's parameter `settings` with flags, one per named
    setting.

    The setting `model` becomes an argument instead of a flag.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        _, *own = signature.parameters.values()
        parameters = [_parameter(name, required=model_required) for name in names]
        parameters += [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

        @wraps(command)
        def run(**given: Any) -> None:
            flags = {name: given.pop(name) for name in names}
            settings = load_settings(flags)
            try:
                command(settings, **given)
            except ModelFileError as error:
                from service.hosting.download import NotDownloadedError  # noqa: PLC0415

                if not isinstance(error, NotDownloadedError):
                    raise
                by_variable = flags.get("model") is None and settings.model is not None
                advice = _works_now(command.__name__, by_variable)
                raise ModelFileError(f"{error}. {advice}") from error

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def names_of_models(incomplete: str) -> list[str]:
    """Return the names of models that begin with `incomplete`."""
    from service.hosting.catalogue import read_catalogue  # noqa: PLC0415

    return [name for name in (BUILT_IN_NAME, *read_catalogue()) if name.startswith(incomplete)]


def _models(incomplete: str) -> list[str]:
    """Return the shell completions of a model argument: names in the catalogue, and files."""
    folder, beginning = Path(incomplete).parent, Path(incomplete).name
    files = []
    if folder.is_dir() and not incomplete.endswith("://"):
        found = sorted(folder.glob(f"{escape(beginning)}*"))
        files = [str(path) for path in found if path.is_dir() or path.suffix == ".onnx"]
    return names_of_models(incomplete) + files


def _works_now(command: str, by_variable: bool) -> str:
    """Return a hint about models that need no download. The hint sets the model as the user did:
    with a variable or with an argument."""
    if by_variable:
        built_in, file = "CONVOY_MODEL=", "CONVOY_MODEL=path.onnx"
    elif called_by_make():
        built_in, file = "make serve", "make serve MODEL=path.onnx"
    elif command in ("serve", "demo", "pull_model"):
        built_in = "convoy demo" if command == "demo" else "convoy serve"
        file = f"{built_in} path.onnx"
    else:
        built_in, file = "digits", "path.onnx"
    return f"These work now: `{built_in}` (the built-in model) and `{file}` (your own file)"


def _parameter(name: str, *, required: bool) -> inspect.Parameter:
    """Return a setting as a parameter of a Typer command. The parameter's value is None if the user
    does not give one."""
    field = Settings.model_fields[name]
    option: Any
    annotation: Any = field.annotation
    if name == "model":
        text = (
            "ONNX model file, a folder with model.onnx, or a name: `digits`, one of "
            "`convoy models`, or hf://ORG/NAME."
            if required
            else field.description
        )
        option = typer.Argument(help=text, show_default=False, autocompletion=_models)
    else:
        required = False
        default = getattr(field.default, "value", field.default)
        plain = default is None or default is False
        flag = "--" + name.replace("_", "-")
        kinds = [
            str(member.value)
            for kind in (get_args(annotation) or (annotation,))
            if isinstance(kind, type) and issubclass(kind, Enum)
            for member in kind
        ]
        shown = f"<{'|'.join(kinds)}>" if kinds else None
        numbers = [kind for kind in (int, float) if kind in (annotation, *get_args(annotation))]
        if name == "preset":
            kinds = list(PRESETS)
        elif numbers:
            shown = f"<{numbers[0].__name__}>"
        if kinds or numbers:  # as text, because `Settings` checks it and explains errors
            annotation = str
        option = typer.Option(
            flag + flag.replace("--", "/--no-", 1) if default is True else flag,
            help=field.description if plain else f"{field.description} [default: {default}]",
            show_default=False,
            metavar=shown,
            autocompletion=(lambda: kinds) if kinds else None,
        )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[annotation if required else annotation | None, option],
    )
