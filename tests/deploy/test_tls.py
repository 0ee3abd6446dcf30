"""The proxies of docs/tls.md in front of a real server, if they are installed."""

import re
import shutil
import ssl
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import tritonclient.grpc as triton_grpc

from benchmarks.serving.http_client import free_port
from models import BUILT_IN_MODEL
from tests.support import PATIENCE_S, ROOT
from tests.support.servers.control import until
from tests.support.servers.several_models import announced
from tests.support.service.triton import files_input

FOLDER = ROOT / "deploy" / "tls"
PROGRAMS = {
    "nginx": ("nginx.conf", "8443", ["-g", "daemon off;", "-c"]),
    "caddy": ("Caddyfile", "8444", ["run", "--adapter", "caddyfile", "--config"]),
}
SAMPLE = BUILT_IN_MODEL.parent / "samples" / "3_ink_on_paper.jpg"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a certificate for localhost."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    subprocess.run([*command, *files], check=True, capture_output=True)
    return folder


@contextmanager
def proxied(
    proxy_name: str, certificate: Path, folder: Path, models: Path, added: Mapping[str, str]
) -> Iterator[httpx.Client]:
    """Yield a client of a proxy with its configuration, except for the ports and folders, and with
    additional lines."""
    name, port, arguments = PROGRAMS[proxy_name]
    program = shutil.which(proxy_name)
    if program is None or shutil.which("openssl") is None:
        pytest.skip(f"{proxy_name} or openssl is not installed")
    with announced(models, "--grpc-port", "0") as line:
        http, grpc = re.findall(r"127\.0\.0\.1:\d+", line)[:2]
        own = free_port()
        text = (FOLDER / name).read_text(encoding="utf-8")
        for before, lines in added.items():
            assert text.count(before) == 1
            text = text.replace(before, lines + before)
        for old, new in (
            ("/etc/convoy", str(certificate)),
            ("127.0.0.1:8000", http),
            ("127.0.0.1:8001", grpc),
            (port, str(own)),
            ("/tmp/convoy-nginx.pid", str(folder / "nginx.pid")),
        ):
            text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")
        proxy = subprocess.Popen([program, *arguments, str(folder / name)], cwd=folder)
        try:
            trusted = ssl.create_default_context(cafile=str(certificate / "tls.crt"))
            with httpx.Client(
                base_url=f"https://localhost:{own}", verify=trusted, timeout=PATIENCE_S
            ) as made:
                _wait(made)
                yield made
        finally:
            proxy.terminate()
            proxy.wait(PATIENCE_S)


@pytest.fixture(params=PROGRAMS)
def client(
    request: pytest.FixtureRequest, certificate: Path, tmp_path: Path
) -> Iterator[httpx.Client]:
    """Yield a client of each proxy in front of the built-in model."""
    with proxied(request.param, certificate, tmp_path, BUILT_IN_MODEL, {}) as made:
        yield made


def _wait(client: httpx.Client) -> None:
    def answers() -> bool:
        try:
            client.get("/healthz")
        except httpx.TransportError:
            return False
        return True

    until(answers)


def test_a_proxy_has_the_certificate_and_convoy_the_answers(client: httpx.Client) -> None:
    answer = client.post("/v1/classify", content=SAMPLE.read_bytes())
    assert answer.json()["results"][0]["predictions"][0]["label"] == "3"
    assert client.get("/metrics").status_code == 404
    assert client.post("/v1/classify", content=bytes(25_000_000)).status_code == 413


def test_tritons_client_goes_through_a_proxy_by_grpc(
    client: httpx.Client, certificate: Path
) -> None:
    address, trusted = f"localhost:{client.base_url.port}", str(certificate / "tls.crt")
    with triton_grpc.InferenceServerClient(address, ssl=True, root_certificates=trusted) as triton:
        answer = triton.infer("digits", [files_input(SAMPLE.read_bytes()).by("grpc")])
    assert answer.as_numpy("logits").argmax() == 3


def test_a_tenth_of_the_requests_goes_to_the_canary(certificate: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs/versions.md").read_text(encoding="utf-8")
    found = re.search(r"(?m)^(    split_clients .*\n)((?:    .*\n)+)", page)
    assert found
    models = tmp_path / "models"
    for name in ("flowers", "flowers-next"):
        (models / name / "1").mkdir(parents=True)
        for file in (BUILT_IN_MODEL, BUILT_IN_MODEL.with_suffix(".toml")):
            shutil.copy(file, models / name / "1" / f"model{file.suffix}")
        shutil.copy(BUILT_IN_MODEL.with_name("labels.txt"), models / name / "1")
    added = {"    server {\n": found[1], "        location / {\n": found[2]}
    sample, counts = SAMPLE.read_bytes(), Counter[str]()
    with proxied("nginx", certificate, tmp_path, models, added) as client:
        for _ in range(200):
            answer = client.post("/v1/models/flowers/classify?top_k=2", content=sample).json()
            assert len(answer["results"][0]["predictions"]) == 2
            counts[answer["model"]] += 1
    assert sum(counts.values()) == 200
    assert 0 < counts["flowers-next"] < 60
