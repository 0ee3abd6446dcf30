"""A release: its steps, with programs that only record their calls, and its workflow."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes with pre-commit, its types do not

from tests.deploy.container_files import ROOT
from tests.deploy.test_locks import NAMES

SCRIPT = ROOT / "deploy" / "release.sh"
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
JOBS = WORKFLOW["jobs"]
DIGEST = f"sha256:{'a' * 64}"


def git(place: Path, *words: str) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    subprocess.run(["git", *identity, *words], cwd=place, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a checkout that may be released as 1.2.3."""
    place = tmp_path / "checkout"
    (place / "deploy").mkdir(parents=True)
    shutil.copy(SCRIPT, place / "deploy")
    (place / "models").mkdir()
    (place / "models/__init__.py").write_text('__version__ = "1.2.3"\n')
    (place / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [Unreleased]\n\n- Later.\n\n## [1.2.3] - 2026-11-25\n\n- New.\n\n"
        "## [1.2.2]\n\n- Old.\n"
    )
    (place / "LICENSE").write_text("as you like it\n")
    git(place, "init", "--quiet")
    git(place, "add", ".")
    git(place, "commit", "--quiet", "-m", "All")
    return place


def release(place: Path, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [str(place / "deploy/release.sh"), *words]
    return subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder of programs that record their calls; Docker prints a digest."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("docker", "cosign"):
        (folder / name).write_text(
            f'#!/bin/sh\necho "{name} $*" >>"{folder}/calls"\n'
            f'case "$*" in *inspect*) echo {DIGEST} ;; esac\n'
        )
        (folder / name).chmod(0o755)
    return folder


def calls(programs: Path) -> list[str]:
    return (programs / "calls").read_text().splitlines()


def path_with(programs: Path) -> str:
    return f"{programs}:{os.environ['PATH']}"


def test_what_may_be_released_passes_the_check(checkout: Path) -> None:
    result = release(checkout, "check", "v1.2.3")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("tag", "change", "says"),
    [
        ("v1.2.3", "rm LICENSE", "there is no LICENSE: the owner of the project must choose a"),
        ("v1.2.4", "true", "the tag is v1.2.4, but models/__init__.py says 1.2.3: tag v1.2.3"),
        ("main", "true", "the tag is main, but"),
        ("v1.2.3", "sed -i s/1.2.3/1.2.4/ CHANGELOG.md", "CHANGELOG.md has no part [1.2.3]"),
        ("v1.2.3", "touch new", "there are changes that are not committed"),
    ],
)
def test_what_may_not_be_released_stops_with_the_reason(
    checkout: Path, tag: str, change: str, says: str
) -> None:
    subprocess.run(change, cwd=checkout, shell=True, check=True)
    result = release(checkout, "check", tag)
    assert result.returncode == 1
    assert says in result.stderr


def test_all_reasons_are_said_at_once(checkout: Path) -> None:
    (checkout / "LICENSE").unlink()
    assert release(checkout, "check", "v9").stderr.count("release: ") == 3


def test_the_notes_are_the_versions_part_of_the_changelog(checkout: Path) -> None:
    assert release(checkout, "notes").stdout.split() == ["-", "New."]


@pytest.mark.parametrize("variant", NAMES[1:])
def test_an_image_has_its_variant_version_commit_sbom_and_provenance(
    checkout: Path, programs: Path, variant: str
) -> None:
    result = release(checkout, "image", variant, "arm64", NAME="r/c", PATH=path_with(programs))
    assert result.returncode == 0, result.stderr
    (call,) = calls(programs)
    assert call.startswith("docker buildx build --platform linux/arm64 ")
    assert f"--build-arg EXTRA={'' if variant == 'cpu' else variant} " in call
    assert "--build-arg VERSION=1.2.3 " in call
    assert re.search(r"REVISION=[0-9a-f]{40} --build-arg CREATED=20\d\d-\d\d-\d\dT[\d:]{8}Z ", call)
    assert "--provenance mode=max --sbom true " in call
    assert call.endswith(f"--tag r/c:1.2.3-{variant}-arm64 --push .")


def test_both_architectures_become_one_image_which_is_signed_by_its_digest(
    checkout: Path, programs: Path, tmp_path: Path
) -> None:
    output = tmp_path / "output"
    environ = {"NAME": "r/c", "PATH": path_with(programs), "GITHUB_OUTPUT": str(output)}
    assert release(checkout, "index", "cuda13", **environ).returncode == 0
    create, _, sign = calls(programs)
    parts = "r/c:1.2.3-cuda13-amd64 r/c:1.2.3-cuda13-arm64"
    assert create == f"docker buildx imagetools create --tag r/c:1.2.3-cuda13 {parts}"
    assert sign == f"cosign sign --yes r/c@{DIGEST}"
    assert output.read_text() == f"digest={DIGEST}\n"
    assert release(checkout, "index", "cpu", **environ).returncode == 0
    assert "--tag r/c:1.2.3-cpu --tag r/c:1.2.3 --tag r/c:latest " in calls(programs)[3]


@pytest.mark.parametrize(
    "words",
    [("image", "cuda11", "amd64"), ("image", "cpu", "s390x"), ("index", ""), ("nothing",), ()],
)
def test_a_step_that_there_is_not_is_refused(checkout: Path, words: tuple[str, ...]) -> None:
    result = release(checkout, *words, DRY="1")
    assert result.returncode == 1
    assert re.match("release: there is no .*; there are ", result.stderr)


def test_dry_nothing_is_uploaded(checkout: Path, programs: Path) -> None:
    environ = {"DRY": "1", "NAME": "r/c", "PATH": path_with(programs)}
    (checkout / "dist").mkdir()
    for step in (
        ("image", "cpu", "amd64"),
        ("image", "cpu", "arm64"),
        ("index", "cpu"),
        ("publish",),
    ):
        assert release(checkout, *step, **environ).returncode == 0
    # Images are built where Docker runs, but only for the machine's own architecture.
    done = [call for call in calls(programs) if call != "docker info"]
    assert [call for call in done if "--push" in call or "create" in call] == []
    assert [call.endswith("--output type=cacheonly .") for call in done] == [True] * len(done)
    assert len(done) <= 1


# --- the workflow --------------------------------------------------------------------------------


def steps(job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = JOBS[job]["steps"]
    return found


def test_the_workflow_calls_every_step_of_the_script_and_no_other() -> None:
    runs = " ".join(step.get("run", "") for job in JOBS for step in steps(job))
    called = set(re.findall(r"deploy/release\.sh ([\w-]+)", runs))
    (names,) = re.findall(r'^one_of "\$step" (.+)$', SCRIPT.read_text(), re.MULTILINE)
    assert called == set(names.split()) - {"dry-run", "notes"}


def test_images_are_those_of_the_locks_for_two_architectures() -> None:
    matrix = JOBS["image"]["strategy"]["matrix"]
    assert matrix["variant"] == JOBS["index"]["strategy"]["matrix"]["variant"] == NAMES[1:]
    text = SCRIPT.read_text()
    assert f"VARIANTS=({' '.join(NAMES[1:])})" in text
    assert f"ARCHITECTURES=({' '.join(matrix['arch'])})" in text
    assert matrix["arch"] == ["amd64", "arm64"]


def test_nothing_is_uploaded_before_the_check_and_nothing_published_before_the_images() -> None:
    order = {job: JOBS[job].get("needs") for job in JOBS}
    assert order == {"package": None, "image": "package", "index": "image", "publish": "index"}
    runs = [step["run"] for step in steps("package") if "deploy/release.sh" in step.get("run", "")]
    assert runs[0] == 'deploy/release.sh check "$GITHUB_REF_NAME"'
    (check,) = (step for step in steps("package") if step.get("run") == runs[0])
    assert check["if"] == "${{ !env.DRY }}"  # by hand there is no tag, and nothing is uploaded
    assert WORKFLOW["env"]["DRY"] == "${{ github.event_name == 'workflow_dispatch' && '1' || '' }}"


def test_actions_are_pinned_and_jobs_may_do_only_what_they_need() -> None:
    used = [step["uses"] for job in JOBS for step in steps(job) if "uses" in step]
    assert len(used) >= 8
    assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each)] == []
    assert WORKFLOW["permissions"] == {"contents": "read"}
    may = {
        job: {key for key, value in JOBS[job]["permissions"].items() if value == "write"}
        for job in JOBS
    }
    assert may == {
        "package": {"id-token", "attestations"},
        "image": {"packages"},
        "index": {"packages", "id-token", "attestations"},
        "publish": {"contents", "id-token"},
    }


def test_uv_is_of_the_version_that_is_tested() -> None:
    assert f"uv=={WORKFLOW['env']['UV_VERSION']}\n" in (ROOT / "constraints.txt").read_text()
