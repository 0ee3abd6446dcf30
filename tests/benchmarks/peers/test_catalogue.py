"""The table of servers: pins, programs, settings, and their requests."""

import email
import json
import re

import pytest

from benchmarks.peers.catalogue import (
    CONVOY,
    LITSERVE,
    PEERS,
    RAY_SERVE,
    TRITON,
    Peer,
    request_for,
    requirements,
)
from benchmarks.rows import ROOT
from benchmarks.serving.overhead import BODY_BYTES

NAMES = [peer.name for peer in PEERS]


def test_the_six_servers_are_compared() -> None:
    assert [CONVOY.name, *NAMES] == [
        "Convoy",
        "Triton",
        "mosec",
        "LitServe",
        "BentoML",
        "Ray Serve",
    ]


@pytest.mark.parametrize("peer", PEERS, ids=NAMES)
def test_a_peers_versions_are_pinned_and_its_decoder_and_runtime_are_convoys(peer: Peer) -> None:
    wanted = (re.fullmatch(r"([a-z-]+)(\[[a-z]+\])?==([\d.]+)", one) for one in requirements(peer))
    pinned = {found[1]: found[3] for found in wanted if found}
    assert len(pinned) == len(requirements(peer)), "each is pinned, and once"
    assert {"numpy", "onnxruntime", "pillow", peer.package} <= set(pinned)
    same = {name for name in pinned if f"{name}=={pinned[name]}" in requirements(LITSERVE)}
    assert {"onnxruntime", "pillow"} <= same


@pytest.mark.parametrize("peer", PEERS, ids=NAMES)
def test_a_peer_has_a_program_and_settings_that_rows_can_tell_apart(peer: Peer) -> None:
    modules = [part.partition(":")[0] for part in peer.command if part.startswith("benchmarks.")]
    assert [(ROOT / (name.replace(".", "/") + ".py")).is_file() for name in modules] == [True]
    names = [setting.name for setting in peer.settings]
    assert len(set(names)) == len(names) > 1
    two = [setting.processes for setting in peer.settings if "2 " in setting.name]
    assert set(two) == {2}, "on two cores, two processes are tried, and share the threads"


def test_no_peer_reports_home() -> None:
    told = {name: value for peer in PEERS for name, value in peer.environment.items()}
    assert (told["RAY_USAGE_STATS_ENABLED"], told["BENTOML_DO_NOT_TRACK"]) == ("0", "True")


def test_ray_serve_runs_at_its_best() -> None:
    """Ray Serve runs with HAProxy and with its own options for throughput: see
    deploy/ray/README.md."""
    first, *others = RAY_SERVE.settings
    assert first.environment["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    assert first.environment["RAY_SERVE_THROUGHPUT_OPTIMIZED"] == "1"
    assert not any(setting.environment for setting in others), "two HAProxies share ports"


def test_a_form_holds_the_image_as_it_is() -> None:
    image = b"\xff\xd8\r\n--\x00"
    head, _, body = request_for("form", "/predict", image, "image/jpeg").partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    form = email.message_from_bytes(head.partition(b"\r\n")[2] + b"\r\n\r\n" + body)
    _, part = form.walk()
    assert part.get_payload(decode=True) == image
    assert part.get_content_type() == "image/jpeg"
    assert part.get_param("name", header="Content-Disposition") == "images"


def test_a_request_of_v2_holds_the_image_after_its_length() -> None:
    image = bytes(range(256)) * (BODY_BYTES // 256)
    head, _, body = request_for("v2", TRITON.path, image, "image/jpeg").partition(b"\r\n\r\n")
    (length,) = re.findall(rb"Inference-Header-Content-Length: (\d+)", head)
    asked, data = json.loads(body[: int(length)]), body[int(length) :]
    assert data == len(image).to_bytes(4, "little") + image
    assert asked["inputs"][0]["parameters"]["binary_data_size"] == len(data)
    assert asked["outputs"] == [{"name": "scores", "parameters": {"classification": 5}}]
