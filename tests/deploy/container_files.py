"""The container files as data: Dockerfile stages, Compose services, and the files that they
name."""

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml  # type: ignore[import-untyped]  # comes with pre-commit, its types do not

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Instruction:
    """A Dockerfile instruction; `text` is everything after its name, on one line."""

    name: str
    text: str

    def exec_form(self) -> list[str]:
        """Return the words of the JSON form; ValueError for the shell form."""
        return cast("list[str]", json.loads(self.text))


def dockerfile_stages() -> list[list[Instruction]]:
    """Return the stages of the Dockerfile, starting with the global ARGs."""
    source = (ROOT / "Dockerfile").read_text()
    lines = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#"))
    stages: list[list[Instruction]] = [[]]
    for line in lines.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        name, _, text = line.strip().partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append(Instruction(name, " ".join(text.split())))
    return stages


def texts(stage: list[Instruction], name: str) -> list[str]:
    """Return the text of each instruction with this name."""
    return [instruction.text for instruction in stage if instruction.name == name]


def environment(stage: list[Instruction]) -> dict[str, str]:
    """Return the variables that the stage's ENV instructions set."""
    return dict(pair.split("=", 1) for text in texts(stage, "ENV") for pair in text.split())


def compose_services() -> dict[str, dict[str, Any]]:
    """Return the Compose file's services, with its variables at their defaults."""
    source = (ROOT / "docker-compose.yml").read_text()
    document = yaml.safe_load(re.sub(r"\$\{\w+:?-([^}]*)\}", r"\1", source))
    return cast("dict[str, dict[str, Any]]", document["services"])


def pyproject() -> dict[str, Any]:
    """Return pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages() -> list[str]:
    """Return the installed top-level folders, with all their subfolders."""
    patterns = pyproject()["tool"]["setuptools"]["packages"]["find"]["include"]
    return [pattern.removesuffix("*") for pattern in patterns]
