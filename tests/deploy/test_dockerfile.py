"""The Dockerfile contains what the deployment promises; this suite does not build it."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from models import __version__
from service.settings import load_settings
from tests.deploy.container_files import (
    ROOT,
    Instruction,
    dockerfile_stages,
    environment,
    packages,
    pyproject,
    texts,
)

RUNTIME = [
    canonicalize_name(Requirement(text).name) for text in pyproject()["project"]["dependencies"]
]


@pytest.fixture(scope="module")
def build() -> list[Instruction]:
    return dockerfile_stages()[1]


@pytest.fixture(scope="module")
def final() -> list[Instruction]:
    return dockerfile_stages()[-1]


def test_every_stage_stands_on_the_same_slim_base() -> None:
    arguments, *stages = dockerfile_stages()
    (base,) = texts(arguments, "ARG")
    assert re.fullmatch(r"BASE=docker\.io/library/python:3\.12-slim@sha256:[0-9a-f]{64}", base)
    assert [stage[0].text for stage in stages] == ["${BASE} AS build", "${BASE}"]


def test_what_is_installed_has_the_hashes_of_the_locks_and_is_cpu_only_unless_asked(
    build: list[Instruction],
) -> None:
    assert texts(build, "ARG") == ["EXTRA="]
    commands = [command.split() for run in texts(build, "RUN") for command in run.split(" && ")]
    installs = [words for words in commands if {"install", "wheel"} & set(words)]
    locked = [words for words in installs if "-r" in words]
    assert [words[words.index("-r") + 1].strip('"') for words in locked] == [
        "deploy/locks/build.txt",
        "deploy/locks/${EXTRA:-cpu}.txt",
    ]
    for words in installs:
        if words in locked:
            assert "--require-hashes" in words
            assert words[words.index("--only-binary") + 1] == ":all:"
        else:  # Convoy itself
            assert {"--no-index", "--no-deps"} <= set(words)
            assert ("--no-build-isolation" in words) == ("wheel" in words)


def test_the_locks_are_for_the_python_of_the_base() -> None:
    (base,) = texts(dockerfile_stages()[0], "ARG")
    locked_for = re.findall(r"--python-version (\S+)", (ROOT / "Makefile").read_text())
    assert [f"python:{version}-slim" in base for version in locked_for] == [True]


def test_nothing_is_installed_in_the_final_stage(final: list[Instruction]) -> None:
    assert not [run for run in texts(final, "RUN") if "install" in run or "apt" in run]
    assert not texts(final, "ADD")


def test_the_server_is_not_root_and_its_id_is_fixed_and_numeric(final: list[Instruction]) -> None:
    (user,) = texts(final, "USER")
    uid, gid = (int(part) for part in user.split(":"))
    assert uid == gid >= 10_000
    after_user = final[final.index(Instruction("USER", user)) :]
    assert not [i for i in after_user if i.name in ("RUN", "COPY")]


def test_sigterm_reaches_the_server(final: list[Instruction]) -> None:
    (entrypoint,) = (i for i in final if i.name == "ENTRYPOINT")
    (command,) = (i for i in final if i.name == "CMD")
    assert entrypoint.exec_form() == ["convoy"]
    assert command.exec_form() == ["serve"]
    assert texts(final, "STOPSIGNAL") == ["SIGTERM"]
    assert "convoy" in pyproject()["project"]["scripts"]


def test_the_server_listens_on_the_exposed_port_of_every_interface(
    final: list[Instruction],
) -> None:
    environ = environment(final)
    settings = load_settings(environ=environ)
    assert settings.host == "0.0.0.0"
    assert texts(final, "EXPOSE") == [str(settings.port)]


def test_the_image_writes_and_reports_nothing_by_itself(final: list[Instruction]) -> None:
    environ = environment(final)
    assert environ["PYTHONDONTWRITEBYTECODE"] == "1"
    assert environ["ORT_DISABLE_TELEMETRY"] == "1"
    assert environ["HOME"] == "/tmp"


def test_the_health_check_is_a_script_of_the_image(final: list[Instruction]) -> None:
    (check,) = texts(final, "HEALTHCHECK")
    words = Instruction("CMD", check.partition("CMD ")[2]).exec_form()
    assert words == ["python", "/opt/convoy/healthcheck.py"]
    assert "deploy/healthcheck.py /opt/convoy/" in texts(final, "COPY")


def test_the_labels_say_what_the_image_holds(final: list[Instruction]) -> None:
    (label,) = texts(final, "LABEL")
    project = pyproject()["project"]
    names = re.findall(r"org\.opencontainers\.image\.([\w.]+)=", label)
    assert names == ["title", "version", "revision", "created", "description", "base.name"]
    assert f'description="{project["description"]}"' in label
    arguments = dict(text.partition("=")[::2] for text in texts(final, "ARG"))
    assert arguments["VERSION"] == __version__
    assert {f"${{{name}}}" for name in arguments} <= set(re.findall(r"\$\{\w+\}", label))


def test_the_sbom_lists_every_package_of_the_environment(
    build: list[Instruction], tmp_path: Path
) -> None:
    """Run the build's own command in the environment of this test instead of the image's."""
    cyclonedx = shutil.which("cyclonedx-py")
    if cyclonedx is None:
        pytest.skip("there is no cyclonedx-py; pip install -e '.[sbom]'")
    commands = [command.split() for run in texts(build, "RUN") for command in run.split(" && ")]
    ((_, *words),) = (words for words in commands if words[0].endswith("/cyclonedx-py"))
    written = Path(words[words.index("--output-file") + 1])
    assert written == Path("/app/opt/convoy/sbom.cdx.json")  # COPY --from=build /app /
    paths = {str(written): str(tmp_path / written.name), "/opt/convoy/bin/python": sys.executable}
    arguments = [paths.get(word, word) for word in words]
    environ = {**os.environ, "PYTHONPATH": ""}  # the interpreter that is listed reads it
    subprocess.run([cyclonedx, *arguments], cwd=ROOT, env=environ, check=True)
    sbom = json.loads((tmp_path / written.name).read_text())
    assert sbom["bomFormat"] == "CycloneDX"
    assert sbom["metadata"]["component"]["name"] == pyproject()["project"]["name"]
    listed = {canonicalize_name(each["name"]): each["version"] for each in sbom["components"]}
    installed = {canonicalize_name(d.name): d.version for d in distributions()}
    assert {name: listed.get(name) for name in RUNTIME} == {n: installed[n] for n in RUNTIME}


def test_the_build_sees_what_is_installed_and_nothing_else() -> None:
    patterns = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in patterns if line and not line.startswith("#")]
    assert rules[0] == "*"
    metadata = {"pyproject.toml", "setup.py", pyproject()["project"]["readme"], "LICENSE*"}
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    assert allowed == metadata | set(packages()) | {"deploy/healthcheck.py", "deploy/locks"}
    assert {"**/__pycache__", "**/*.pyc"} <= set(rules)
