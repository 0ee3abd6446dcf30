"""deploy/kubernetes is valid according to the schemas, has few rights, and uses existing
settings."""

import base64
import copy
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # comes with pre-commit, its types do not

from kernels.device.compile import DEFAULT_CACHE
from kernels.tuning.store import DEFAULT_STORE
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
    kustomized,
    needs_kubectl,
    pod_spec,
    rendered,
)
from tests.support import PATIENCE_S

KUBERNETES_VERSION = "1.34"
CRDS = yaml.safe_load((Path(__file__).with_name("crds.yaml")).read_text())
# Modules of models that are made from what KEDA and the Prometheus Operator publish. Their import
# takes seconds, so the schemas are recorded in a file.
PUBLISHED = {"ScaledObject": "keda.v1alpha1", "PodMonitor": "prometheus_operator.v1"}
RECORDED = Path(__file__).with_name("published.json")
VARIANTS = [
    ("cpu",),
    ("gpu",),
    ("kserve",),
    ("kserve-hf",),
    *(("cpu", component) for component in COMPONENTS),
    ("gpu", "autoscaling", "cache-on-volume", "model-from-volume"),
    ("gpu", "api-keys", "model-from-url", "opentelemetry"),
]
PAGE = (KUBERNETES / "README.md").read_text(encoding="utf-8")
EXAMPLES = [
    re.sub("(?m)^    ", "", block)
    for block in re.findall(r"(?m)^    resources:.*\n(?:    .*\n)+", PAGE)
]

pytestmark = needs_kubectl
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids="+".join)
ours = pytest.mark.parametrize("overlay", ["cpu", "gpu", "kserve"])
KSERVE_PYTHON = os.environ.get("KSERVE_PYTHON", "")


def check(resource: Resource) -> None:
    """Raise the errors that the schema of its kind reports. Most variants have the same resources,
    which are validated once."""
    text = json.dumps(resource, sort_keys=True)
    if text not in _VALID:
        _validate(resource)
        _VALID.add(text)


_VALID: set[str] = set()


@cache
def _kubernetes_validate() -> Any:
    """Return the package, which from now on reads each of its large files once."""
    why = "kubernetes-validate is not installed (extra `dev`)"
    package = pytest.importorskip("kubernetes_validate", reason=why)
    package.utils.schema_contents = cache(package.utils.schema_contents)
    return package


def _validate(resource: Resource) -> None:
    validate = _kubernetes_validate()
    kind = resource["kind"]
    if kind not in (*CRDS, *PUBLISHED):
        validate.validate(resource, KUBERNETES_VERSION, strict=True)
        return
    import jsonschema  # noqa: PLC0415  comes with kubernetes-validate

    if kind in PUBLISHED:
        jsonschema.validate(_known(resource), _recorded()[kind])
        return
    properties = {"kind": {}, "metadata": {"type": "object"}, **CRDS[kind]}
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    jsonschema.validate(resource, {**schema, "required": list(properties)})
    if "containers" in resource["spec"]:
        pod = pod_spec({kind: resource})
        metadata = {"name": "pod"}
        check({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})


def _known(resource: Resource) -> Resource:
    """Return a resource without the field that is newer than the models, which are KEDA 2.16's."""
    if resource["kind"] != "ScaledObject":
        return resource
    fallback = {k: v for k, v in resource["spec"]["fallback"].items() if k != "behavior"}
    return {**resource, "spec": {**resource["spec"], "fallback": fallback}}


@cache
def _recorded() -> dict[str, Any]:
    """Return the schemas of the published kinds; `--write-golden` writes them."""
    schemas: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return schemas


def _closed(schema: Any) -> Any:
    """Return a schema without descriptions, which refuses fields that it does not list."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        key: {name: _closed(each) for name, each in value.items()}
        if key in ("properties", "$defs")
        else _closed(value)
        for key, value in schema.items()
        if key not in ("default", "description", "title")
    }
    return {"additionalProperties": False, **kept} if "properties" in kept else kept


@pytest.mark.slow
@pytest.mark.parametrize("kind", PUBLISHED)
def test_the_recorded_schema_is_that_of_the_published_models(
    kind: str, pytestconfig: pytest.Config
) -> None:
    model = _model(kind)
    schema = _closed(model.model_json_schema(by_alias=True))
    if pytestconfig.getoption("--write-golden"):
        recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        RECORDED.write_text(json.dumps({**recorded, kind: schema}, sort_keys=True) + "\n")
    assert schema == json.loads(RECORDED.read_text())[kind]
    resource = _known(rendered("cpu", "autoscaling")[kind])
    # The models drop a field that they do not know.
    kept = model.model_validate(resource).model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert kept == resource, set(resource["spec"]) - set(kept["spec"])


def _model(kind: str) -> Any:
    """Return the model of a published kind; there are a thousand, which are created when first
    used."""
    why = "cloudcoil's models are not installed (extra `dev`)"
    pydantic = pytest.importorskip("cloudcoil.pydantic", reason=why)
    for base in (pydantic.BaseModel, pydantic.BaseBuilder):
        base.model_config["defer_build"] = True
    return getattr(import_module(f"cloudcoil.models.{PUBLISHED[kind]}"), kind)


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
    runtime = rendered("kserve")["ServingRuntime"]
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
    # KServe adds port 8080 where none is listed; what is listed could not be replaced by gRPC's.
    unlisted = [{"name": "http1", "containerPort": 8080}] if "kserve" in variant[0] else []
    ports = {p["name"]: p["containerPort"] for p in container.get("ports", unlisted)}
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


def mebibytes(quantity: str) -> int:
    """Return the number of bytes in `256Mi` or `2Gi`."""
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]


@every_variant
def test_ephemeral_storage_is_bounded_and_holds_every_empty_volume(
    variant: tuple[str, ...],
) -> None:
    spec = pod_spec(rendered(*variant))
    sizes = [
        mebibytes(each["emptyDir"]["sizeLimit"]) for each in spec["volumes"] if "emptyDir" in each
    ]
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        resources = container["resources"]
        limit = resources["limits"]["ephemeral-storage"]
        assert resources["requests"]["ephemeral-storage"] == limit
        assert sum(sizes) < mebibytes(limit)


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


def test_the_servers_of_the_page_get_the_model_and_the_image_that_it_names() -> None:
    """Render the page's own YAML with `kubectl kustomize`, unchanged."""
    volume, url, image = (kustomized(text, keys="secret\n") for text in EXAMPLES)
    for resources in (volume, url, image):
        for resource in resources.values():
            check(resource)
    environ = container_environment(volume)
    assert environ["CONVOY_MODEL"] == "/models/flowers.onnx"
    assert environ["CONVOY_DEVICE"] == "cuda"
    (server,) = pod_spec(volume)["containers"]
    assert re.fullmatch(r"registry\.example/convoy@sha256:[0-9a-f]{64}", server["image"])

    environ = container_environment(url, "download")
    assert environ["URL"].endswith("/flowers.onnx")
    assert len(bytes.fromhex(environ["SHA256"])) == hashlib.sha256().digest_size
    environ = container_environment(url)
    assert environ["CONVOY_PRESET"] == "imagenet"
    (download,) = pod_spec(url)["initContainers"]
    assert environ["CONVOY_MODEL"] == download["command"][-1]
    keys = url["convoy-keys"]
    (volume_of_keys,) = (each for each in pod_spec(url)["volumes"] if each["name"] == "keys")
    assert volume_of_keys["secret"]["secretName"] == keys["metadata"]["name"]
    (server,) = pod_spec(url)["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
    (file,) = (f"{mounts['keys']}/{key}" for key in keys["data"])
    assert environ["CONVOY_API_KEY_FILE"] == file
    assert base64.b64decode(keys["data"]["keys"]) == b"secret\n"

    (models,) = (each for each in pod_spec(image)["volumes"] if each["name"] == "models")
    assert re.fullmatch(
        r"registry\.example/flowers@sha256:[0-9a-f]{64}", models["image"]["reference"]
    )


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_what_the_user_sets_wins_over_every_overlay_and_component(overlay: str) -> None:
    place = "../convoy/deploy/kubernetes"
    names = set(container_environment(rendered(overlay, *COMPONENTS)))
    mine = {
        "resources": [f"{place}/overlays/{overlay}"],
        "components": [f"{place}/components/{name}" for name in COMPONENTS],
        "configMapGenerator": [
            {"name": "convoy", "behavior": "merge", "literals": [f"{each}=x" for each in names]}
        ],
    }
    environ = container_environment(kustomized(yaml.safe_dump(mine)))
    assert environ == dict.fromkeys(names, "x")
    assert {"CONVOY_MODEL", "CONVOY_DEVICE", "CONVOY_API_KEY_FILE"} <= names


def test_the_download_runs_in_the_image_of_the_server() -> None:
    for overlay in ("cpu", "gpu"):
        spec = pod_spec(rendered(overlay, "model-from-url"))
        images = {each["image"] for each in [*spec["containers"], *spec["initContainers"]]}
        assert images == {"convoy:cuda13" if overlay == "gpu" else "convoy:cpu"}


def open_ports(*variant: str) -> set[tuple[int, str]]:
    """Return the ports that the pods may reach, and the destinations."""
    rules = rendered(*variant)["NetworkPolicy"]["spec"]["egress"]
    return {
        (port["port"], next(iter(to), ""))
        for rule in rules
        for port in rule["ports"]
        for to in rule.get("to", [{}])
    }


def test_pods_reach_only_what_a_component_needs() -> None:
    assert {variant: open_ports(*variant) for variant in VARIANTS if open_ports(*variant)} == {
        ("kserve-hf",): {(53, ""), (443, "ipBlock")},
        ("cpu", "model-from-url"): {(53, ""), (443, "ipBlock")},
        ("cpu", "opentelemetry"): {(53, ""), (4318, "namespaceSelector")},
        ("gpu", "api-keys", "model-from-url", "opentelemetry"): {
            (53, ""),
            (443, "ipBlock"),
            (4318, "namespaceSelector"),
        },
    }


def test_traces_go_where_the_pods_may_go() -> None:
    resources = rendered("cpu", "opentelemetry")
    environ = container_environment(resources)
    assert load_settings(environ=environ).otel
    endpoint = httpx.URL(environ["OTEL_EXPORTER_OTLP_ENDPOINT"])
    (rule,) = (rule for rule in resources["NetworkPolicy"]["spec"]["egress"] if rule.get("to"))
    assert rule["ports"] == [{"port": endpoint.port}]
    (to,) = rule["to"]
    (namespace,) = to["namespaceSelector"]["matchLabels"].values()
    assert endpoint.host.split(".")[1:] == [namespace, "svc"]


def test_the_cache_is_where_kernels_and_tuning_are_kept() -> None:
    resources = rendered("gpu", "cache-on-volume")
    (server,) = pod_spec(resources)["containers"]
    mounts = {mount["name"]: mount for mount in server["volumeMounts"]}
    home = environment(dockerfile_stages()[-1])["HOME"]
    kept = [str(path).replace("~", home) for path in (DEFAULT_CACHE, DEFAULT_STORE)]
    assert {str(Path(path).parent) for path in kept} == {mounts["cache"]["mountPath"]}
    assert not mounts["cache"].get("readOnly")


def test_kserves_pods_have_a_startup_probe_and_a_policy_of_their_own() -> None:
    resources = rendered("kserve")
    (server,) = pod_spec(resources)["containers"]
    probe = server["startupProbe"]
    deployed = pod_spec(rendered("cpu"))["containers"][0]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == (
        deployed["periodSeconds"] * deployed["failureThreshold"]
    )
    policy = resources["NetworkPolicy"]["spec"]
    name = resources["InferenceService"]["metadata"]["name"]
    assert policy["podSelector"]["matchLabels"] == {"serving.kserve.io/inferenceservice": name}
    assert policy["egress"] == []
    settings = load_settings(environ=container_environment(resources))
    ports = {port["port"] for rule in policy["ingress"] for port in rule.get("ports", ())}
    assert {settings.port, settings.grpc_port, settings.metrics_port} <= ports
    annotations = resources["ServingRuntime"]["spec"]["annotations"]
    assert annotations["prometheus.kserve.io/port"] == str(settings.metrics_port)
    # Knative's proxy listens on these in the same pod.
    assert settings.metrics_port not in (8012, 8013, 8022, 9090, 9091)


def test_kserve_selects_the_runtime_itself_by_format_and_protocol() -> None:
    resources = rendered("kserve")
    runtime, service = resources["ServingRuntime"]["spec"], resources["InferenceService"]["spec"]
    model = service["predictor"]["model"]
    assert "runtime" not in model
    (offered,) = runtime["supportedModelFormats"]
    assert (offered["name"], offered["autoSelect"]) == (model["modelFormat"]["name"], True)
    assert model["protocolVersion"] in runtime["protocolVersions"]
    assert model["storageUri"].startswith("pvc://")
    hub = rendered("kserve-hf")["InferenceService"]["spec"]["predictor"]["model"]
    assert hub == {**model, "storageUri": "hf://your-organisation/squeezenet"}


@pytest.mark.skipif(
    not KSERVE_PYTHON, reason="KSERVE_PYTHON names no Python that has the package kserve"
)
def test_kserves_resources_have_the_fields_of_its_own_models() -> None:
    kinds = ("ServingRuntime", "InferenceService")
    resources = [rendered(overlay)[kind] for overlay in ("kserve", "kserve-hf") for kind in kinds]
    assert _wrong_by_kserve(resources) == []
    misspelt = copy.deepcopy(resources[:2])
    misspelt[0]["spec"]["containers"][0]["securityContext"]["runAsRoot"] = False
    misspelt[0]["spec"]["supportedModelFormats"][0]["autoSelect"] = "yes"
    misspelt[1]["spec"]["predictor"]["model"]["storageUrl"] = "pvc://models"
    assert [line.rpartition(".")[2] for line in _wrong_by_kserve(misspelt)] == [
        "runAsRoot: V1SecurityContext has no such field",
        "autoSelect: 'yes' is no bool",
        "storageUrl: V1beta1ModelSpec has no such field",
    ]


def _wrong_by_kserve(resources: list[Resource]) -> list[str]:
    script = Path(__file__).with_name("kserve_fields.py")
    done = subprocess.run(
        [KSERVE_PYTHON, str(script)],
        input=json.dumps(resources),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a server of the files in `tmp_path`."""
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
        timeout=PATIENCE_S,
    )
    assert run.returncode == bool(error)
    assert error in run.stderr
    files = {file.name: file.read_bytes() for file in target.iterdir()}
    assert files == ({} if error else {"model.onnx": b"weights"})
