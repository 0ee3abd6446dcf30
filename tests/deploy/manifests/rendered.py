"""What `kubectl kustomize` makes of deploy/kubernetes, and the container that it describes."""

import os
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
    """The resources of an overlay with these components, by kind; AssertionError: an error.

    A ConfigMap is under its name without the hash, because there are several.
    """
    with tempfile.TemporaryDirectory() as folder:
        relative = Path(os.path.relpath(KUBERNETES, Path(folder).resolve()))
        kustomization = {
            "resources": [str(relative / "overlays" / overlay)],
            "components": [str(relative / "components" / name) for name in components],
        }
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        run = subprocess.run(
            ["kubectl", "kustomize", folder], capture_output=True, text=True, check=False
        )
    assert run.returncode == 0, run.stderr
    assert not run.stderr
    resources = [cast("Resource", each) for each in yaml.safe_load_all(run.stdout)]
    by_kind = {_key(each): each for each in resources}
    assert len(by_kind) == len(resources)
    return by_kind


def _key(resource: Resource) -> str:
    kind: str = resource["kind"]
    name: str = resource["metadata"]["name"]
    return name.rpartition("-")[0] if kind == "ConfigMap" else kind


def pod_spec(resources: dict[str, Resource]) -> dict[str, Any]:
    """The pod of the Deployment, or of KServe's runtime."""
    if "Deployment" in resources:
        return cast("dict[str, Any]", resources["Deployment"]["spec"]["template"]["spec"])
    runtime = resources["ClusterServingRuntime"]["spec"]
    return {key: runtime[key] for key in ("containers", "volumes")}


def container_environment(resources: dict[str, Resource]) -> dict[str, str]:
    """What the manifest sets for the container."""
    (container,) = pod_spec(resources)["containers"]
    environ: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        environ |= resources[source["configMapRef"]["name"].rpartition("-")[0]]["data"]
    return environ | {each["name"]: each["value"] for each in container.get("env", ())}
