"""Convoy on real Ray clusters of two nodes, deployed by deploy/ray/serve.yaml."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from models import BUILT_IN_MODEL
from service.settings import Settings, SettingsError

if TYPE_CHECKING:
    from tests.support.ray.cluster import RayConvoy

pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")

pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")  # Ray's

SAMPLES = sorted((BUILT_IN_MODEL.parent / "samples").iterdir())


@pytest.fixture(scope="module")
def running() -> "Iterator[RayConvoy]":
    """Yield a cluster of two nodes, each with a replica."""
    from tests.support.ray.cluster import ray_convoy  # noqa: PLC0415  imports Ray

    with ray_convoy(nodes=2, replicas=(2, 2), arguments={"max_batch": 4}) as found:
        yield found


def test_every_node_has_a_replica(running: "RayConvoy") -> None:
    assert len({replica.address for replica in running.replicas()}) == 2


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_it_answers_as_convoy_does(running: "RayConvoy", sample: Path) -> None:
    answer = httpx.post(f"{running.url}/v1/classify?top_k=1", content=sample.read_bytes())
    assert answer.status_code == 200
    (result,) = answer.json()["results"]
    assert result["predictions"][0]["label"] == sample.name[0]


def test_arguments_are_settings(running: "RayConvoy") -> None:
    model = httpx.get(f"{running.url}/v2/models/digits/config").json()
    assert model["max_batch_size"] == 4


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/v2/health/ready", None, 200),
        ("/v1/classify", b"no image", 415),
        ("/v1/classify?top_k=0", b"x", 422),
        ("/metrics", None, 404),
        ("/nothing", None, 404),
    ],
)
def test_other_answers_are_convoys_too(
    running: "RayConvoy", path: str, content: bytes | None, status: int
) -> None:
    method = "POST" if content else "GET"
    answer = httpx.request(method, running.url + path, content=content)
    assert answer.status_code == status
    assert status == 200 or answer.json()["error"]


def test_faults_lose_nothing(running: "RayConvoy") -> None:
    """While a replica is killed, a node is lost and another joins, each request is answered or
    refused."""
    from tests.support.ray.cluster import Proxy  # noqa: PLC0415
    from tests.support.ray.faults import faults, unexpected  # noqa: PLC0415  imports Ray

    found = faults(running, seconds=24)
    assert unexpected(found, Proxy.PYTHON) == {}
    assert found["answered"] > 100
    assert found["answered"] + sum(found["errors"].values()) == found["requests"]


@pytest.mark.slow
@pytest.mark.parametrize("proxy", ["python", "haproxy"])
def test_faults_lose_nothing_behind_either_proxy(proxy: str) -> None:
    from tests.support.ray.cluster import Proxy, ray_convoy  # noqa: PLC0415  imports Ray
    from tests.support.ray.faults import faults, unexpected  # noqa: PLC0415  imports Ray

    with ray_convoy(nodes=2, replicas=(2, 2), proxy=Proxy(proxy)) as running:
        found = faults(running, seconds=60)
    assert unexpected(found, Proxy(proxy)) == {}


def ask(url: str, images: int, stop: threading.Event) -> Counter[int]:
    """Send requests with this many images, one after another, until `stop` is set. Return the
    counts of their statuses."""
    files = [("file", (sample.name, sample.read_bytes())) for sample in SAMPLES]
    body = [files[n % len(files)] for n in range(images)]
    statuses: Counter[int] = Counter()
    with httpx.Client(timeout=60, trust_env=False) as client:
        while not stop.is_set():
            statuses[client.post(f"{url}/v1/classify", files=body).status_code] += 1
    return statuses


@pytest.mark.slow
def test_waiting_images_add_a_replica_and_one_that_leaves_answers_what_it_has() -> None:
    from tests.support.ray.cluster import ray_convoy  # noqa: PLC0415  imports Ray

    autoscaling = {
        "look_back_period_s": 2.0,
        "metrics_interval_s": 0.5,
        "upscale_delay_s": 1.0,
        "downscale_delay_s": 2.0,
    }
    # Two requests are no reason for another replica: the images that wait in one are.
    with ray_convoy(nodes=2, replicas=(1, 2), autoscaling=autoscaling) as running:
        many, one = threading.Event(), threading.Event()
        with ThreadPoolExecutor(3) as pool:
            busy = [pool.submit(ask, running.url, 64, many) for _ in range(2)]
            light = pool.submit(ask, running.url, 1, one)
            try:
                running.wait_for(2)
                many.set()
                running.wait_for(1)
                time.sleep(2)
            finally:
                many.set()
                one.set()
        statuses = light.result() + busy[0].result() + busy[1].result()
        assert set(statuses) == {200}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(Settings(api_key_file=Path("keys")), id="api_key_file"),
        pytest.param(Settings(max_rate=10), id="max_rate"),
        pytest.param(Settings(shared_memory=True), id="shared_memory"),
    ],
)
def test_settings_of_convoys_own_server_are_refused(
    settings: Settings, request: pytest.FixtureRequest
) -> None:
    from service.ray.application import application  # noqa: PLC0415  imports Ray

    with pytest.raises(SettingsError, match=request.node.callspec.id):
        application(settings)
