"""A real server whose model changes under load over both protocols. Every answer comes from a
single version."""

import asyncio
import json
import re
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from benchmarks.serving.swaps import NAME, Clients, scores_of, swapping, write_version
from loadtest.images import SAMPLES, load_images
from loadtest.journal import OK
from tests.support import PATIENCE_S
from tests.support.servers.forked import BUSY_SERVER, KEEPING_SERVER
from tests.support.servers.several_models import announced
from tests.support.service.client import metric_in

ADDRESSES = r"127\.0\.0\.1:\d+"
SWAPS = 2  # one by each protocol, to a third version


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return text if url.endswith("/metrics") else json.loads(text)


def test_under_load_nothing_is_lost_or_mixed_and_each_answer_is_of_one_version(
    tmp_path: Path,
) -> None:
    images, expected = load_images(SAMPLES), []
    for version in (0, 1):
        write_version(tmp_path, version)
        expected.append(scores_of(tmp_path, images))
    outcomes: Counter[str] = Counter()

    async def load(clients: Clients) -> None:
        async with clients, swapping(clients, tmp_path, every_s=0.2) as done:
            number = 0
            while len(done.took_s) < SWAPS:
                asked = (clients.send(number + each) for each in range(6))
                outcomes.update(each.kind for each in await asyncio.gather(*asked))
                number += 6
                await asyncio.sleep(0.03)  # or what loads the model waits for this client, too
        assert done.failures == []

    options = ["--grpc-port", "0", "--repository-api", "--device", "cpu", "--no-access-log"]
    with announced(tmp_path, *options, program=BUSY_SERVER) as line:
        http, grpc = re.findall(ADDRESSES, line)[:2]
        clients = Clients(f"http://{http}", grpc, images, expected)
        asyncio.run(asyncio.wait_for(load(clients), 500))
        metrics = get(f"http://{http}/metrics")
        metadata = get(f"http://{http}/v2/models/{NAME}")
    assert set(outcomes) == {OK}
    assert len(clients.versions) >= SWAPS
    answered = metric_in(metrics, f'convoy_requests_total{{model="{NAME}",status="200"}}')
    assert answered == outcomes[OK] == clients.versions.total()
    loaded = metric_in(metrics, f'convoy_swaps_total{{model="{NAME}",outcome="loaded"}}')
    last = 1 + int(loaded)
    assert metadata["versions"] == [str(last)]
    assert metric_in(metrics, f'convoy_version{{model="{NAME}"}}') == last
    of_last = f'nv_inference_request_success_total{{model="{NAME}",version="{last}"}}'
    assert metric_in(metrics, of_last) == clients.versions[last]


def test_the_calls_of_tritons_client_work_by_both_protocols(tmp_path: Path) -> None:
    write_version(tmp_path, 1)
    options = ("--grpc-port", "0", "--repository-api", "--device", "cpu")
    with announced(tmp_path, *options, program=KEEPING_SERVER) as line:
        http, grpc = re.findall(ADDRESSES, line)[:2]
        version = 1
        for client in (
            triton_http.InferenceServerClient(http),
            triton_grpc.InferenceServerClient(grpc),
        ):
            version += 1
            write_version(tmp_path, version)
            for _ in range(2):  # the second time nothing has changed
                client.load_model(NAME)
                assert versions(client) == [str(version)]
            client.unload_model(NAME)
            with pytest.raises(InferenceServerException, match="is not found"):
                client.get_model_metadata(NAME)
            client.load_model(NAME)
            assert versions(client) == [str(version)]
            with pytest.raises(
                InferenceServerException, match="the server loads models and their settings only"
            ):
                client.load_model(NAME, config="{}")
            with pytest.raises(InferenceServerException, match="no such model in the server's"):
                client.load_model("another")
            (tmp_path / NAME / "model.onnx").write_text("this is no model")
            with pytest.raises(InferenceServerException, match=f"version {version + 1} of {NAME}"):
                client.load_model(NAME)
            version += 1
            client.close()


def versions(client: Any) -> list[str]:
    """Return a model's versions. Over gRPC they are an attribute, and in JSON they are a key."""
    metadata = client.get_model_metadata(NAME)
    found: list[str] = metadata["versions"] if isinstance(metadata, dict) else metadata.versions
    return list(found)


def test_changed_files_are_loaded_where_they_are_watched(tmp_path: Path) -> None:
    write_version(tmp_path, 1)
    with announced(tmp_path, "--watch", "--device", "cpu", program=BUSY_SERVER) as line:
        url = f"http://{re.findall(ADDRESSES, line)[0]}"
        write_version(tmp_path, 2)
        wait_until(lambda: get(f"{url}/v2/models/{NAME}")["versions"] == ["2"])
        request = urllib.request.Request(f"{url}/v2/repository/models/{NAME}/load", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(request, timeout=PATIENCE_S)


def wait_until(condition: Any, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
