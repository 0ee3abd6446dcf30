"""The proxies of docs/tls.md in front of a real server, where they are installed."""

import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.serving.http_client import free_port
from models import BUILT_IN_MODEL
from tests.support import ROOT
from tests.support.servers.several_models import announced

FOLDER = ROOT / "deploy" / "tls"
PROGRAMS = {
    "nginx": ("nginx.conf", "8443", ["-g", "daemon off;", "-c"]),
    "caddy": ("Caddyfile", "8444", ["run", "--adapter", "caddyfile", "--config"]),
}
SAMPLE = BUILT_IN_MODEL.parent / "samples" / "3_ink_on_paper.jpg"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate of localhost."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    subprocess.run([*command, *files], check=True, capture_output=True)
    return folder


@pytest.fixture(params=PROGRAMS)
def client(
    request: pytest.FixtureRequest, certificate: Path, tmp_path: Path
) -> Iterator[httpx.Client]:
    """A client of a proxy with its configuration, but for the ports and folders."""
    name, port, arguments = PROGRAMS[request.param]
    program = shutil.which(request.param)
    if program is None or shutil.which("openssl") is None:
        pytest.skip(f"{request.param} or openssl is not installed")
    with announced(BUILT_IN_MODEL, "--grpc-port", "0") as line:
        http, grpc = re.findall(r"127\.0\.0\.1:\d+", line)[:2]
        own = free_port()
        text = (FOLDER / name).read_text(encoding="utf-8")
        for old, new in (
            ("/etc/convoy", str(certificate)),
            ("127.0.0.1:8000", http),
            ("127.0.0.1:8001", grpc),
            (port, str(own)),
            ("/tmp/convoy-nginx.pid", str(tmp_path / "nginx.pid")),
        ):
            text = text.replace(old, new)
        (tmp_path / name).write_text(text, encoding="utf-8")
        proxy = subprocess.Popen([program, *arguments, str(tmp_path / name)], cwd=tmp_path)
        try:
            trusted = ssl.create_default_context(cafile=str(certificate / "tls.crt"))
            with httpx.Client(base_url=f"https://localhost:{own}", verify=trusted) as made:
                _wait(made)
                yield made
        finally:
            proxy.terminate()
            proxy.wait(20)


def _wait(client: httpx.Client) -> None:
    for _ in range(200):
        try:
            client.get("/healthz")
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the proxy does not answer")


def test_a_proxy_has_the_certificate_and_convoy_the_answers(client: httpx.Client) -> None:
    answer = client.post("/v1/classify", content=SAMPLE.read_bytes())
    assert answer.json()["results"][0]["predictions"][0]["label"] == "3"
    assert client.get("/metrics").status_code == 404
    assert client.post("/v1/classify", content=bytes(25_000_000)).status_code == 413
