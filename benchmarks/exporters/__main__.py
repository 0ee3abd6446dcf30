"""Compares Convoy's answers with the answers of the exporters' own pipelines.

    python -m benchmarks.exporters export [FOLDER] [--exporter NAME]...
    python -m benchmarks.exporters check [FOLDER]
    python -m benchmarks.exporters record [FOLDER]

`export` installs a pinned version of each exporter in a separate environment. Each exporter writes
ONNX models. Then the exporter's own inference code classifies the photographs of Convoy's demo
page. Its answers are written next to the models. `check` lets Convoy classify the same photographs,
without any flag, and writes docs/exporters.md. Its exit status is 1 if an answer is wrong and
Convoy did not warn. `record` copies the small models to the tests.
"""

import argparse
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.environments import Environment, NotInstalledError, environment
from benchmarks.exporters.catalogue import EXPORTERS, SCRIPTS, Exporter
from benchmarks.exporters.check import WRONG, check
from benchmarks.exporters.table import table
from benchmarks.rows import ROOT, commit

FOLDER = ROOT / ".cache" / "exporters"
ENVIRONMENTS = Path.home() / ".cache" / "convoy" / "exporters"
PHOTOGRAPHS = ROOT / "service" / "api" / "page" / "photographs"
PAGE = ROOT / "docs" / "exporters.md"
RECORDINGS = ROOT / "tests" / "benchmarks" / "exporters" / "recordings"

MOST_BYTES = 24_000
"""The most bytes of a model that is recorded for the tests."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the subcommand: export, check or record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exporters", description=__doc__)
    parser.add_argument("what", choices=("export", "check", "record"))
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    names = [each.name for each in EXPORTERS]
    parser.add_argument("--exporter", action="append", choices=names)
    options = parser.parse_args(arguments)
    console = Console(width=160)
    if options.what == "export":
        failed = export(options.folder.resolve(), options.exporter or names, console)
        parser.exit(status=1 if failed else 0)
    if options.what == "record":
        record(options.folder, RECORDINGS)
        return
    verdicts = []
    for verdict in check(options.folder, PHOTOGRAPHS):
        console.print(f"{verdict.model}: {verdict.outcome} {verdict.said}", markup=False)
        verdicts.append(verdict)
    PAGE.write_text(table(verdicts, commit()), encoding="utf-8")
    parser.exit(status=1 if any(each.outcome == WRONG for each in verdicts) else 0)


def export(folder: Path, names: Sequence[str], console: Console) -> list[str]:
    """Run the exporters' scripts. Return the names of the exporters whose scripts could not be
    run."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for exporter in EXPORTERS:
        if exporter.name not in names:
            continue
        try:
            made = installed(exporter, console)
        except NotInstalledError as error:
            console.print(f"{exporter.name} cannot be installed: {error}", markup=False)
            failed.append(exporter.name)
            continue
        command = [made.program("python"), str(SCRIPTS / exporter.script)]
        asked = [str(folder), str(PHOTOGRAPHS), *exporter.arguments]
        # Some exporters write further files to the current folder.
        if subprocess.run([*command, *asked], cwd=folder, check=False).returncode:
            failed.append(exporter.name)
    return failed


def installed(exporter: Exporter, console: Console) -> Environment:
    """Return the exporter's environment, and create it if it is missing. Raises
    NotInstalledError."""
    key = exporter.requirements[0].partition("==")[0].partition("[")[0]
    return environment(key, exporter.requirements, ENVIRONMENTS, console.print)


def record(folder: Path, recordings: Path) -> None:
    """Copy each model's folder to the folder `recordings`, except models whose files have more than
    MOST_BYTES together."""
    for model in sorted(file.parent for file in folder.glob("*/expected.json")):
        files = [file for file in model.rglob("*") if file.is_file()]
        if sum(file.stat().st_size for file in files) <= MOST_BYTES:
            shutil.copytree(model, recordings / model.name, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
