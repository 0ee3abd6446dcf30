"""A real server whose GPU accepts no more work answers all requests and exits with status 75."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.support import PATIENCE_S
from tests.support.servers.forked import Forked
from tests.support.servers.several_models import SAMPLES, save_channels

SAMPLE = SAMPLES[4].read_bytes()


@contextmanager
def serving(lost: Path, device: str) -> Iterator[tuple[Forked, httpx.Client]]:
    """Yield a server of a network of two layers, because each kernel is compiled."""
    model = lost.with_name("channels.onnx")
    save_channels(model)
    meaning = (model, "--set", "output=logits")
    arguments = ("serve", *meaning, "--device", device, "--max-batch", "1", "--port", "0")
    process = Forked("tests.support.servers.lost_device_server", lost, *arguments)
    try:
        assert process.stdout is not None
        url = re.search(r"http://\S+", process.stdout.readline())
        assert url is not None, process.communicate()[1]
        with httpx.Client(base_url=url[0], timeout=PATIENCE_S) as client:
            yield process, client
    finally:
        process.kill()
        process.communicate()


def ask(client: httpx.Client) -> int:
    return client.post("/v1/classify", content=SAMPLE).status_code


def test_a_lost_device_ends_the_server_with_status_75_once_all_is_answered(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    with serving(lost, "cuda") as (process, client):
        assert ask(client) == 200
        metrics = client.get("/metrics").text
        assert re.search(r'convoy_engine_info\{device="CPU simulator.*fallback_reason=""', metrics)
        lost.touch()
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda _: ask(client), range(8)))
        assert set(statuses) <= {500, 503}
        assert 500 in statuses  # the batch that found out
        assert process.wait(PATIENCE_S) == 75
        assert process.stderr is not None
        log = process.stderr.read()
    assert "Error: the device is lost: channels failed on a batch of" in log
    assert "the engine is restarted" not in log


def test_auto_serves_from_the_cpu_where_the_device_is_lost_at_once(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    lost.touch()
    with serving(lost, "auto") as (_, client):
        assert ask(client) == 200
        metrics = client.get("/metrics").text
        assert re.search(r'convoy_engine_info\{device="cpu.*fallback_reason=".*illegal', metrics)
