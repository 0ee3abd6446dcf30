"""The Compose file: the CPU by default, the GPU on request, few rights and a loopback port."""

import re
import subprocess
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes with pre-commit, its types do not

from kernels.device.compile import DEFAULT_CACHE
from service.settings import PREFIX, Settings
from tests.deploy.container_files import (
    ROOT,
    compose_services,
    dockerfile_stages,
    environment,
    pyproject,
    texts,
)

Service = dict[str, Any]
TASKS = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
ALL = compose_services()
SERVICES = {name: s for name, s in ALL.items() if s["image"].startswith("convoy:")}
OTHERS = {name: s for name, s in ALL.items() if name not in SERVICES}


@pytest.fixture(params=SERVICES, ids=str)
def service(request: pytest.FixtureRequest) -> Service:
    return SERVICES[request.param]


def test_the_default_is_one_service_on_the_cpu() -> None:
    default = {name: s for name, s in ALL.items() if "profiles" not in s}
    assert list(default) == ["convoy"]
    assert default["convoy"]["build"] == "."
    assert "deploy" not in default["convoy"]


def test_the_gpu_profile_reserves_a_gpu_and_builds_for_it() -> None:
    (gpu,) = (s for s in SERVICES.values() if s.get("profiles") == ["gpu"])
    (device,) = gpu["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia"
    assert device["count"] == 1
    assert "gpu" in device["capabilities"]
    extra = gpu["build"]["args"]["EXTRA"]
    assert extra in pyproject()["project"]["optional-dependencies"]
    assert gpu["image"] != SERVICES["convoy"]["image"]
    assert gpu["environment"] == {
        **SERVICES["convoy"]["environment"],
        "CONVOY_DEVICE": "cuda",
    }


def test_the_root_is_read_only_with_a_bounded_tmpfs(service: Service) -> None:
    assert service["read_only"] is True
    (tmpfs,) = service["tmpfs"]
    path, _, options = tmpfs.partition(":")
    assert path == "/tmp"
    assert {"size=64m", "noexec", "nosuid", "nodev"} <= set(options.split(","))
    models, cache = service["volumes"]
    assert models.endswith(":/models:ro")
    assert cache == f"cache:{path}/{DEFAULT_CACHE.parent.relative_to('~')}"
    image = dockerfile_stages()[-1]
    assert environment(image)["HOME"] == path
    assert f"mkdir -p {path}/.cache/convoy && chown -R convoy: {path}/.cache" in " ".join(
        texts(image, "RUN")
    )


def test_no_privilege_is_left(service: Service) -> None:
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert [service["user"]] == texts(dockerfile_stages()[-1], "USER")
    assert not {"privileged", "cap_add", "devices", "network_mode", "pid"} & set(service)


def test_memory_and_processes_are_bounded(service: Service) -> None:
    assert service["mem_limit"] == "4g"
    assert service["pids_limit"] == 512


def test_only_this_machine_reaches_the_port(service: Service) -> None:
    (port,) = service["ports"] or SERVICES["convoy"]["ports"]  # none: a proxy has it
    host, published, inside = port.split(":")
    assert host == "127.0.0.1"
    assert published == str(Settings().port)
    assert [inside] == texts(dockerfile_stages()[-1], "EXPOSE")


@pytest.mark.parametrize("name", OTHERS)
def test_other_services_have_a_version_few_rights_and_a_loopback_port(name: str) -> None:
    other = OTHERS[name]
    assert re.fullmatch(r"docker\.io/[\w/-]+:v?\d+\.\d+\.\d+@sha256:[0-9a-f]{64}", other["image"])
    assert other["read_only"] is True
    assert other["cap_drop"] == ["ALL"]
    assert other["security_opt"] == ["no-new-privileges:true"]
    assert other["mem_limit"]
    assert other["pids_limit"]
    assert [port.split(":")[0] for port in other["ports"]] == ["127.0.0.1"]
    for volume in other["volumes"]:
        source, _, options = volume.partition(":")
        assert not source.startswith(".") or ((ROOT / source).exists() and options.endswith(":ro"))


def test_stopping_waits_longer_than_the_server_drains(service: Service) -> None:
    assert float(service["stop_grace_period"].removesuffix("s")) > Settings().drain_s
    assert service["init"] is True
    assert service["restart"] == "unless-stopped"


def test_health_is_what_the_image_asks(service: Service) -> None:
    (check,) = texts(dockerfile_stages()[-1], "HEALTHCHECK")
    health = service["healthcheck"]
    command = " ".join(health["test"][1:])
    assert command in check.replace('["', "").replace('"]', "").replace('", "', " ")
    for option in ("interval", "timeout", "start_period", "retries"):
        assert f"--{option.replace('_', '-')}={health[option]}" in check.split()


def test_the_models_folder_is_in_every_clone_and_keys_are_a_secret_that_git_ignores(
    service: Service,
) -> None:
    models = service["volumes"][0].split(":")[0]
    listed = ["git", "ls-files", "--", models]
    assert subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
    (secret,) = service["secrets"]
    document = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert document["secrets"] == {secret: {"file": "${KEYS:-/dev/null}"}}
    commands = re.findall(r"KEYS=./(\S+) CONVOY_API_KEY_FILE=(\S+) ", TASKS)
    assert commands == [("keys", f"/run/secrets/{secret}")]
    ignored = ["git", "check-ignore", commands[0][0]]
    assert subprocess.run(ignored, cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_every_setting_is_passed_on_but_the_address(service: Service) -> None:
    names = service["environment"]
    keys = {name.removeprefix(PREFIX).lower() for name in names if name.startswith(PREFIX)}
    assert keys == set(Settings.model_fields) - {"host", "port"}


def test_the_variables_of_hubs_are_passed_on(service: Service) -> None:
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    table = page.partition("| variable | effect |")[2].partition("\n\n")[0]
    names = re.findall(r"`(HF_\w+|\w+_proxy)", table)
    assert len(names) == 5
    assert set(names) <= set(service["environment"])
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in service["environment"]


def test_each_variable_is_passed_once() -> None:
    """YAML's last value of a key counts, without a word."""
    source = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    names = re.findall(r"^    (CONVOY_\w+):", source, re.MULTILINE)
    assert names
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("document", ["docker-compose.yml", "deploy/README.md"])
def test_the_first_request_that_is_shown_sends_an_image_that_exists(document: str) -> None:
    shown = re.findall(r"file=@(\S+)", (ROOT / document).read_text())
    assert shown
    assert all((ROOT / image).is_file() for image in shown)
