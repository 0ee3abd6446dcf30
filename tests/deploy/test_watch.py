"""The Compose profile `watch`: rules with promtool, and every panel's query in a real
Prometheus."""

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml  # type: ignore[import-untyped]  # comes with pre-commit, its types do not

from models import BUILT_IN_MODEL
from tests.deploy.container_files import ROOT, compose_services
from tests.support import PATIENCE_S
from tests.test_end_to_end import ServeProcess, served

PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "convoy.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SAMPLES = sorted((BUILT_IN_MODEL.parent / "samples").iterdir())

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="there is no promtool; Debian: prometheus"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="there is no prometheus; Debian: prometheus"
)

# A GPU's metrics, as service/telemetry/gpus.py exports them: the server under test runs on the CPU.
GPU = b"""nv_gpu_memory_used_bytes{gpu_uuid="x"} 60
nv_gpu_memory_total_bytes{gpu_uuid="x"} 80
nv_gpu_utilization{gpu_uuid="x"} 0.5
"""


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    ["check config prometheus.yml", "check rules rules.yml", "test rules rules_test.yml"],
)
def test_promtool_accepts(arguments: str) -> None:
    command = ["promtool", *arguments.split()]
    run = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    groups = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    tests = yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == alerts
    silent = {case["alertname"] for case in cases if not case["exp_alerts"]}
    assert silent == alerts - {"ConvoyDecodeSlow"}  # the rule of ConvoyQueueSlow, another phase


def test_prometheus_finds_the_servers_of_the_compose_file() -> None:
    (scrape,) = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    scraped = {
        name: discovery["port"]
        for discovery in scrape["dns_sd_configs"]
        for name in discovery["names"]
    }
    ours = {name: s for name, s in compose_services().items() if s["image"].startswith("convoy:")}
    # With a port of their own where one is set, else where requests are answered.
    assert scraped == {
        name: int(
            service["environment"]["CONVOY_METRICS_PORT"] or service["ports"][0].split(":")[-1]
        )
        for name, service in ours.items()
    }


def test_grafana_reads_the_prometheus_of_the_compose_file() -> None:
    file = GRAFANA / "provisioning" / "datasources" / "prometheus.yml"
    (source,) = yaml.safe_load(file.read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert {panel["datasource"]["uid"] for panel in PANELS} == {source["uid"]}
    provider = (GRAFANA / "provisioning" / "dashboards" / "convoy.yml").read_text()
    (folder,) = re.findall(r"path: (\S+)", provider)
    mounts = [volume.split(":")[1] for volume in compose_services()["grafana"]["volumes"]]
    assert folder in mounts


def test_the_dashboard_answers_in_order() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == [
        "Is it serving?",
        "How fast?",
        "Where is the time?",
        "How full are the batches?",
        "How full is the GPU?",
    ]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the samples of an instant query."""
        answer = httpx.get(
            f"{self.url}/api/v1/query", params={"query": expression}, timeout=PATIENCE_S
        )
        assert answer.status_code == 200, answer.text
        return cast("list[dict[str, Any]]", answer.json()["data"]["result"])


@pytest.fixture(scope="module")
def gpu_exporter() -> Iterator[str]:
    """Yield the address of a page with a GPU's metrics."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(GPU)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[ServeProcess]:
    with served("--device", "cpu") as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(
    tmp_path_factory: pytest.TempPathFactory, server: ServeProcess, gpu_exporter: str
) -> Iterator[Prometheus]:
    """Yield Debian's Prometheus with Convoy's rules and these targets instead of Compose's."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "300ms", "evaluation_interval": "300ms"}
    (scrape,) = config["scrape_configs"]
    del scrape["dns_sd_configs"]
    targets = [server.url.removeprefix("http://"), gpu_exporter]
    scrape["static_configs"] = [{"targets": targets}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(PROMETHEUS / "rules.yml", folder)
    log = folder / "log"
    with log.open("w") as lines:
        process = subprocess.Popen(
            [
                *("prometheus", f"--config.file={folder}/prometheus.yml"),
                *(f"--storage.tsdb.path={folder}/data", "--web.listen-address=127.0.0.1:0"),
            ],
            stderr=lines,
        )
    try:
        yield Prometheus(f"http://{address(process, log)}")
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Return its address, from its log when it is ready."""
    deadline = time.monotonic() + PATIENCE_S
    while "Server is ready" not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (found,) = re.findall(r'msg="Listening on" address=(\S+)', log.read_text())
    return str(found)


@needs_prometheus
def test_every_query_of_the_dashboard_returns_data(
    prometheus: Prometheus, server: ServeProcess
) -> None:
    expressions = [target["expr"] for panel in PANELS for target in panel["targets"]]
    assert len(expressions) == len(set(expressions)) > 15
    images = [sample.read_bytes() for sample in SAMPLES]
    deadline = time.monotonic() + PATIENCE_S
    missing = expressions
    while missing:
        assert time.monotonic() < deadline, missing
        for image in images:
            server.classify(image)
        missing = [each for each in missing if not finite(prometheus.query(each))]
    (waiting,) = prometheus.query('count(up{job="convoy"} == 1)')
    assert waiting["value"][1] == "2"
    assert prometheus.query('ALERTS{alertstate="firing"}') == []


@needs_prometheus
def test_the_dashboard_is_drawn_without_grafana(
    prometheus: Prometheus, server: ServeProcess, tmp_path: Path
) -> None:
    draw = pytest.importorskip("draw", reason="Matplotlib is not installed (extra `dev`)")
    file = tmp_path / "dashboard.png"
    deadline = time.monotonic() + PATIENCE_S
    while draw.draw_dashboard(prometheus.url, file, minutes=1):
        assert time.monotonic() < deadline
        server.classify(SAMPLES[0].read_bytes())
    assert file.read_bytes().startswith(b"\x89PNG")


@needs_prometheus
def test_what_is_scraped_is_what_was_served(prometheus: Prometheus, server: ServeProcess) -> None:
    server.classify(SAMPLES[0].read_bytes())
    text = server.client.get("/metrics").text
    (count,) = re.findall(r'^convoy_images_total\{model="digits"\} (\S+)$', text, re.MULTILINE)
    deadline = time.monotonic() + PATIENCE_S
    while float(value(prometheus.query("convoy_images_total"))) != float(count):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def finite(samples: list[dict[str, Any]]) -> bool:
    """Return whether there is data, all of which is numbers."""
    return bool(samples) and not {s["value"][1] for s in samples} & {"NaN", "+Inf", "-Inf"}


def value(samples: list[dict[str, Any]]) -> str:
    """Return the value of the only sample; NaN: none yet."""
    return str(samples[0]["value"][1]) if samples else "nan"
