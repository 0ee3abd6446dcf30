"""The output of `kubectl kustomize` for deploy/kubernetes, and the container that it describes."""

import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import yaml  # type: ignore[import-untyped]  # comes with pre-commit, its types do not

from tests.deploy.container_files import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
COMPONENTS = sorted(path.name for path in (KUBERNETES / "components").iterdir())

Resource = dict[str, Any]

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="there is no kubectl; Debian: kubernetes-client"
)


@cache
def rendered(overlay: str, *components: str) -> dict[str, Resource]:
    """Return the resources of an overlay with these components, by kind; AssertionError: an error.

    ConfigMaps and Secrets are under their names without the hash, because there are several.
    """
    place = "../convoy/deploy/kubernetes"
    return kustomized(
        yaml.safe_dump(
            {
                "resources": [f"{place}/overlays/{overlay}"],
                "components": [f"{place}/components/{name}" for name in components],
            }
        )
    )


def kustomized(kustomization: str, **files: str) -> dict[str, Resource]:
    """Return the resources of a Kustomization in a folder with these files, next to a clone of
    Convoy."""
    with tempfile.TemporaryDirectory() as parent:
        Path(parent, "convoy").symlink_to(ROOT)
        folder = Path(parent, "mine")
        folder.mkdir()
        for name, text in {"kustomization.yaml": kustomization, **files}.items():
            (folder / name).write_text(text)
        run = subprocess.run(
            ["kubectl", "kustomize", folder], capture_output=True, text=True, check=False
        )
    assert run.returncode == 0, run.stderr
    assert not run.stderr
    documents = yaml.load_all(run.stdout, yaml.CSafeLoader)  # 10 times as fast as safe_load_all
    resources = [cast("Resource", each) for each in documents]
    by_kind = {_key(each): each for each in resources}
    assert len(by_kind) == len(resources)
    return by_kind


def _key(resource: Resource) -> str:
    kind: str = resource["kind"]
    return _unhashed(resource["metadata"]["name"]) if kind in ("ConfigMap", "Secret") else kind


def _unhashed(name: str) -> str:
    """Return the name that a generator was given; other names do not end in a hash."""
    return re.sub(r"-[2-9bcdfghkmt]{10}$", "", name)


def pod_spec(resources: dict[str, Resource]) -> dict[str, Any]:
    """Return the pod of the Deployment, or of KServe's runtime."""
    if "Deployment" in resources:
        return cast("dict[str, Any]", resources["Deployment"]["spec"]["template"]["spec"])
    runtime = resources["ServingRuntime"]["spec"]
    return {key: runtime[key] for key in ("containers", "volumes")}


def container_environment(resources: dict[str, Resource], name: str = "") -> dict[str, str]:
    """Return the manifest's environment for the init container with this name, or for the
    server."""
    spec = pod_spec(resources)
    (container,) = (
        (each for each in spec["initContainers"] if each["name"] == name)
        if name
        else (spec["containers"])
    )
    environ: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        environ |= resources[_unhashed(source["configMapRef"]["name"])].get("data", {})
    return environ | {each["name"]: each["value"] for each in container.get("env", ())}
