"""deploy/kubernetes: valid by the schemas, few rights, and settings that Convoy has."""

import hashlib
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes with pre-commit, its types do not

from service.http.server import LEAVE_S
from service.settings import load_settings
from tests.deploy.container_files import (
    compose_services,
    dockerfile_stages,
    environment,
    texts,
)
from tests.deploy.manifests.rendered import (
    COMPONENTS,
    KUBERNETES,
    Resource,
    container_environment,
    needs_kubectl,
    pod_spec,
    rendered,
)

KUBERNETES_VERSION = "1.34"
CRDS = yaml.safe_load((Path(__file__).with_name("crds.yaml")).read_text())
# Made from the resource definitions that KEDA and the Prometheus Operator publish.
PUBLISHED = {"ScaledObject": "keda.v1alpha1", "PodMonitor": "prometheus_operator.v1"}
VARIANTS = [
    ("cpu",),
    ("gpu",),
    ("kserve",),
    *(("cpu", component) for component in COMPONENTS),
    ("gpu", "autoscaling", "model-from-volume"),
]

pytestmark = needs_kubectl
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids="+".join)
ours = pytest.mark.parametrize("overlay", ["cpu", "gpu", "kserve"])


def check(resource: Resource) -> None:
    """Raise what the schema of its kind refuses."""
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed (extra `dev`)"
    )
    kind = resource["kind"]
    if kind == "ScaledObject":  # the models are KEDA 2.16's; this field is newer
        fallback = {k: v for k, v in resource["spec"]["fallback"].items() if k != "behavior"}
        resource = {**resource, "spec": {**resource["spec"], "fallback": fallback}}
    if kind in PUBLISHED:
        module, why = PUBLISHED[kind], "cloudcoil's models are not installed (extra `dev`)"
        model = getattr(pytest.importorskip(f"cloudcoil.models.{module}", reason=why), kind)
        # The models drop a field that they do not know.
        kept = model.model_validate(resource).model_dump(
            mode="json", by_alias=True, exclude_unset=True
        )
        assert kept == resource, set(resource["spec"]) - set(kept["spec"])
        return
    if kind not in CRDS:
        validate.validate(resource, KUBERNETES_VERSION, strict=True)
        return
    import jsonschema  # noqa: PLC0415  comes with kubernetes-validate

    properties = {"kind": {}, "metadata": {"type": "object"}, **CRDS[kind]}
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    jsonschema.validate(resource, {**schema, "required": list(properties)})
    if "containers" in resource["spec"]:
        pod = pod_spec({kind: resource})
        metadata = {"name": "pod"}
        check({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})


@every_variant
def test_every_resource_is_valid(variant: tuple[str, ...]) -> None:
    for resource in rendered(*variant).values():
        check(resource)


@pytest.mark.parametrize("kind", ["Deployment", "ScaledObject", "PodMonitor"])
def test_the_schemas_refuse_a_misspelt_field(kind: str) -> None:
    resource = rendered("cpu", "autoscaling")[kind]
    check(resource)
    with pytest.raises(Exception, match="replicaz"):
        check({**resource, "spec": {**resource["spec"], "replicaz": 2}})


def test_the_schemas_refuse_a_misspelt_field_of_a_container_of_kserve() -> None:
    runtime = rendered("kserve")["ClusterServingRuntime"]
    (container,) = runtime["spec"]["containers"]
    wrong = {**runtime["spec"], "containers": [{**container, "imag": "x"}]}
    with pytest.raises(Exception, match="imag"):
        check({**runtime, "spec": wrong})


@every_variant
def test_convoy_takes_the_environment_of_the_manifest(variant: tuple[str, ...]) -> None:
    resources = rendered(*variant)
    image = environment(dockerfile_stages()[-1])
    settings = load_settings(environ=image | container_environment(resources))
    (container,) = pod_spec(resources)["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert settings.port in ports.values()
    assert settings.metrics_port == ports.get("metrics", settings.metrics_port)
    assert settings.metrics_port != settings.port


@ours
def test_the_container_has_no_rights_and_a_read_only_root(overlay: str) -> None:
    spec = pod_spec(rendered(overlay))
    (container,) = spec["containers"]
    security = {**spec.get("securityContext", {}), **container["securityContext"]}
    assert security["runAsNonRoot"]
    assert [f"{security['runAsUser']}:{security['runAsGroup']}"] == texts(
        dockerfile_stages()[-1], "USER"
    )
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & set(spec)
    written = {volume["name"] for volume in spec["volumes"] if "sizeLimit" in volume["emptyDir"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == written == {"tmp"}


@ours
def test_processor_and_memory_are_bounded_and_guaranteed(overlay: str) -> None:
    (container,) = pod_spec(rendered(overlay))["containers"]
    resources = container["resources"]
    gpu = {"nvidia.com/gpu": "1"} if overlay == "gpu" else {}
    assert resources["limits"] == {**resources["requests"], **gpu}
    assert resources["limits"]["memory"] == "4Gi"


@ours
def test_the_image_is_one_that_compose_builds(overlay: str) -> None:
    (container,) = pod_spec(rendered(overlay))["containers"]
    services = compose_services()
    service = "convoy-gpu" if overlay == "gpu" else "convoy"
    assert container["image"] == services[service]["image"]


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_stopping_allows_for_the_drain(overlay: str) -> None:
    resources = rendered(overlay)
    spec = pod_spec(resources)
    (container,) = spec["containers"]
    settings = load_settings(environ=container_environment(resources))
    needed_s = settings.notice_s + settings.drain_s + 2 * LEAVE_S
    assert needed_s < spec["terminationGracePeriodSeconds"]
    probe = container["readinessProbe"]
    assert settings.notice_s > probe["periodSeconds"] * probe["failureThreshold"]


def test_selectors_are_the_labels_of_the_pods() -> None:
    resources = rendered("cpu", "autoscaling")
    labels = {"app.kubernetes.io/name": "convoy"}
    assert resources["Deployment"]["spec"]["template"]["metadata"]["labels"] == labels
    (spread,) = pod_spec(resources)["topologySpreadConstraints"]
    selectors: list[Any] = [
        resources["Deployment"]["spec"]["selector"]["matchLabels"],
        resources["Service"]["spec"]["selector"],
        resources["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        resources["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        resources["PodMonitor"]["spec"]["selector"]["matchLabels"],
        spread["labelSelector"]["matchLabels"],
    ]
    assert selectors == [labels] * len(selectors)
    assert "replicas" not in resources["Deployment"]["spec"]


def test_ports_are_named_as_the_container_names_them() -> None:
    resources = rendered("cpu", "autoscaling")
    (container,) = pod_spec(resources)["containers"]
    names = {port["name"] for port in container["ports"]}
    rules = resources["NetworkPolicy"]["spec"]["ingress"]
    used = {port["port"] for rule in rules for port in rule["ports"]}
    used |= {port["targetPort"] for port in resources["Service"]["spec"]["ports"]}
    used |= {each["port"] for each in resources["PodMonitor"]["spec"]["podMetricsEndpoints"]}
    used |= {
        container[f"{p}Probe"]["httpGet"]["port"] for p in ("startup", "readiness", "liveness")
    }
    assert used == names


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the files in `tmp_path`."""
    (tmp_path / "model.onnx").write_bytes(b"weights")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("model.onnx", b"weights", ""),
        ("model.onnx", b"other weights", "expected"),
        ("absent.onnx", b"weights", "404"),
    ],
)
def test_a_model_is_downloaded_whole_and_as_expected_or_not_at_all(
    tmp_path: Path, origin: str, name: str, content: bytes, error: str
) -> None:
    target = tmp_path / "to"
    target.mkdir()
    script = KUBERNETES / "components" / "model-from-url" / "download.py"
    sha256 = hashlib.sha256(content).hexdigest().upper()
    run = subprocess.run(
        [sys.executable, script, target / "model.onnx"],
        env={"URL": f"{origin}/{name}", "SHA256": sha256, "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == bool(error)
    assert error in run.stderr
    files = {file.name: file.read_bytes() for file in target.iterdir()}
    assert files == ({} if error else {"model.onnx": b"weights"})
