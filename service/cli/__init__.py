"""Defines the command line: `convoy serve`, `pull`, `models`, `classify`, `inspect` and others.

The exit status is 0 for success, 1 for failure, and 2 for an invalid command line or setting. It is
75 if the GPU was lost, because a new process may be able to use the GPU. An error is one line on
standard error, without a traceback.

A command's module is imported only when the command runs, because importing all modules takes
seconds.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from service.cli.collector import importing

_COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("serve:serve", "Serve models over HTTP until SIGTERM or Ctrl-C."),
    "demo": ("serve:demo", "Serve one model, and open its page in a browser."),
    "models": ("pull:list_models", "List the models that `pull` knows by name."),
    "pull": ("pull:pull_model", "Download a well-known model, and check it."),
    "classify": ("classify:classify", "Classify images without a server."),
    "check": ("check:check", "Compare a model's labels with its images' names."),
    "quantize": ("quantize:quantize", "Make an 8-bit model that keeps its labels."),
    "inspect": ("inspect:inspect", "Show how a model's nodes are rewritten."),
    "tune": ("tune:tune", "Measure a model's convolutions on this GPU."),
    "compile": ("compile:compile_ahead", "Compile a model's kernels ahead of time."),
    "loadtest": ("loadtest:loadtest", "Measure a running server under load."),
}
"""Each command's module in this package, its function, and its line in the list of commands."""

_OF_OTHER_SERVERS: Mapping[str, str] = {
    **dict.fromkeys(("--batch-size", "--max-batch-size"), "use --max-batch"),
    **dict.fromkeys(("--bind", "--address", "--listen", "--http-address"), "use --host and --port"),
    **dict.fromkeys(
        ("--config", "--config-file", "--env-file"), "use flags, or variables such as CONVOY_PORT"
    ),
    **dict.fromkeys(("--gpu", "--gpus"), "use --device cuda, or --devices cuda:all"),
    **dict.fromkeys(("--http-port", "--rest-port"), "use --port"),
    **dict.fromkeys(("--model-dir", "--model-path", "--model-repository", "--models"), ""),
    **dict.fromkeys(("--reload", "--model-control-mode"), "use --watch or --repository-api"),
    **dict.fromkeys(
        ("--workers", "--num-workers"), "a server uses all cores; --threads limits the threads"
    ),
}
"""Flags of other servers that users may try with `convoy serve`, and what to use instead. "": the
flag's value is an argument of `convoy serve`."""


class _Commands(TyperGroup):
    """Lists the commands without importing their modules. Imports the module of a command when it
    is called."""

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        found = _COMMANDS.get(cmd_name)
        return found and TyperCommand(cmd_name, short_help=found[1])

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        command = next((word for word in args if word in _COMMANDS), "")
        own = _flags(self.get_params(ctx))
        if command and args[0].startswith("-") and args[0].partition("=")[0] not in own:
            ctx.fail(f"No such option: {args[0]}; options follow the command: `convoy {command} …`")
        return super().parse_args(ctx, args)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        wanted = args[0]
        if wanted not in _COMMANDS and not ctx.resilient_parsing:
            near = get_close_matches(wanted, [*_COMMANDS, "--help", "--version"], 1)
            right = (
                f"did you mean {near[0]!r}?"
                if near
                else f"`convoy --help` lists them, and `convoy serve {wanted}` serves a model"
            )
            ctx.fail(f"No such command {wanted!r}; {right}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is None:
            return name, None, rest
        command = _imported(wanted)
        known = _flags(command.params)
        for flag in (word.partition("=")[0] for word in rest):
            right = _OF_OTHER_SERVERS.get(flag, "") if wanted == "serve" else ""
            alike = flag == "--model" or (wanted == "serve" and flag in _OF_OTHER_SERVERS)
            if alike and flag not in known:
                right = right or f"omit the flag, as in `convoy {wanted} digits`"
                ctx.fail(f"No such option: {flag}; {right}")
        for word in rest:
            near = [flag for flag in sorted(known) if flag.startswith(f"-{word}")]
            if len(word) == 2 and word not in known and near:
                ctx.fail(f"No such option: {word}; did you mean {' or '.join(near)}?")
        return name, command, rest


def _flags(parameters: Iterable[Any]) -> set[str]:
    return {flag for parameter in parameters for flag in parameter.opts}


class _Grouped(TyperCommand):
    """Prints the help of `convoy serve` with the settings in groups. Each setting's text is
    shortened to two lines. docs/settings.md has the full texts."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        ctx.allow_extra_args = True
        rest = super().parse_args(ctx, args)
        if ctx.args and not ctx.resilient_parsing:
            ctx.fail(
                f"Got the unexpected argument {ctx.args[0]!r}; to serve several models, put each in"
                " its own folder and give the folder above, as in `convoy serve models/`"
            )
        return rest

    @override
    def format_options(self, ctx: Any, formatter: Any) -> None:
        settings = import_module("..settings", __package__)
        rows = {str(one.name): one.get_help_record(ctx) for one in self.get_params(ctx)}
        grouped = {name for names in settings.GROUPS.values() for name in names}
        others = [name for name in rows if name not in grouped]
        for title, names in {**settings.GROUPS, "Others": others}.items():
            with formatter.section(title):
                found = [row for name in names if (row := rows.get(name))]
                formatter.write_dl([(flag, settings.short(text)) for flag, text in found])


def _imported(name: str) -> Any:
    """Import a command's module, and return the command with its flags."""
    module, function = _COMMANDS[name][0].split(":")
    one = typer.Typer(add_completion=False, rich_markup_mode=None)
    kind = _Grouped if name == "serve" else TyperCommand
    with importing():
        command = getattr(import_module(f".{module}", __package__), function)
    one.command(name, cls=kind)(command)
    return typer.main.get_command(one)


app = typer.Typer(
    name="convoy",
    cls=_Commands,
    help="Serve ONNX image classifiers with low-latency dynamic batching.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # errors stay one line
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line. An expected error is printed as one line and sets the exit status."""
    try:
        app()
    except Exception as error:
        failures = import_module(".failures", __package__)
        status = failures.status_of(error)
        if status is None:
            raise
        typer.echo(f"Error: {failures.message_of(error)}", err=True)
        raise SystemExit(status) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"convoy {version('convoy-inference')}")
        raise typer.Exit


@app.callback()
def _convoy(
    _: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass
