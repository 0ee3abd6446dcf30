"""Builds the wheel, whose one top-level name is `convoy_inference`.

In a checkout, and in an editable installation, the parts `kernels`, `loadtest`, `models` and
`service` are top-level packages. Other projects have packages with these names, such as Hugging
Face's `kernels` and an application's `models`. So the wheel has the parts inside
`convoy_inference`, from where they import each other: `from models.graph import Graph` becomes
`from convoy_inference.models.graph import Graph`. Line numbers stay the same, and nothing else
changes. docs/decisions/one-name.md gives the reasons.
"""

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT_NAME = "convoy_inference"
PARTS = ("kernels", "loadtest", "models", "service")


def within_root(source: str) -> str:
    """Return a module's source, changed so that it imports the parts from `ROOT_NAME`.

    Raises SyntaxError for `import part.module`, because it binds the name `part`, which the wheel
    does not have.
    """
    lines = source.encode().splitlines(keepends=True)  # columns are counted in bytes
    found = _imports_of_parts(ast.parse(source))
    for node in sorted(found, key=lambda node: node.col_offset, reverse=True):
        if isinstance(node, ast.Import):
            raise SyntaxError(f"line {node.lineno}: import a part with `from PART import NAME`")
        line = lines[node.lineno - 1]
        before, after = line[: node.col_offset], line[node.col_offset :]
        lines[node.lineno - 1] = before + after.replace(
            b"from ", b"from %b." % ROOT_NAME.encode(), 1
        )
    return b"".join(lines).decode()


def _imports_of_parts(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [str(node.module)]
        else:
            continue
        if any(name.partition(".")[0] in PARTS for name in names):
            yield node


class _Inside(build_py):  # type: ignore[misc]  # setuptools has no types
    """Moves the built parts into `ROOT_NAME`. An editable installation builds no parts."""

    def run(self) -> None:
        """Build the contents of the wheel."""
        super().run()
        if self.editable_mode:
            return
        for part in PARTS:
            built, inside = Path(self.build_lib, part), Path(self.build_lib, ROOT_NAME, part)
            shutil.rmtree(inside, ignore_errors=True)  # remains of an earlier build
            shutil.move(built, inside)
        for file in Path(self.build_lib, ROOT_NAME).rglob("*.py"):
            file.write_text(within_root(file.read_text(encoding="utf-8")), encoding="utf-8")


class _OneName(Distribution):  # type: ignore[misc]  # as above
    """Writes the wheel's only top-level name into its metadata."""

    def iter_distribution_names(self) -> Iterator[str]:
        """Yield the top-level name."""
        yield ROOT_NAME


if __name__ == "__main__":
    setup(distclass=_OneName, cmdclass={"build_py": _Inside})
