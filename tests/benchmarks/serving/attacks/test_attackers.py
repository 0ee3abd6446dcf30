"""The worst requests are accepted, and their effect on an honest client is evaluated."""

import gzip
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rows import read
from benchmarks.serving.attacks import __main__ as harness
from benchmarks.serving.attacks.__main__ import Honest, broken
from benchmarks.serving.attacks.attackers import frames, png, scans, webp
from benchmarks.serving.attacks.http2 import Connection, message_of
from benchmarks.serving.attacks.ways import DONE, UNANSWERED
from models import BUILT_IN_MODEL
from models.preprocessing import PRESETS
from service.errors import PayloadTooLargeError
from service.grpc.messages import INFERENCE
from service.images.clip import prepare_clip
from service.images.prepare import ImageLimits, parse_image_file
from tests.service.grpc.test_port import client, digit
from tests.support.servers.served import run
from tests.support.service.client import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="attackers have 127.0.0.2")

ALONE = Honest("nobody", 0, [0.01] * 10)

# What is refused by now, by parts of the names.
BOUNDED = ("frames", "JSON", "not there", "brackets", "white", "tensors", "form", "wrong", "chunks")


def test_the_images_cost_much_for_their_bytes() -> None:
    for data, pixels, most in ((webp(5000), 25e6, 1100), (png(5000), 25e6, 5000)):
        assert parse_image_file(data).pixels == pixels
        assert len(data) < most
    jpeg = parse_image_file(scans())
    assert jpeg.scans == 100


def test_an_animation_repeats_one_frame_and_is_refused_for_that() -> None:
    data = frames(5000)
    assert len(data) < 22_000
    clips = replace(PRESETS["digits"].at(8, 8), frames=4)
    with pytest.raises(PayloadTooLargeError, match="max-clip-s"):
        prepare_clip(data, clips, ImageLimits())


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (Honest("a", 1, [0.031] * 9, attacks={"200": 1}), "a on 1 connections: p50 was 31 ms, 3.1"),
        (Honest("a", 4, [*[0.01] * 9, 0.6], attacks={"200": 1}), "the longest latency was 600 ms"),
        (Honest("a", 4, [0.01], grown=600_000_000, attacks={"200": 1}), "memory grew by 600 MB"),
        (
            Honest("a", 4, [0.01], kept=20_000_000, attacks={"200": 1}),
            "20 MB were not freed within",
        ),
        (Honest("a", 1, [0.01], wrong=["503"], attacks={"503": 1}), "ended with 503"),
        (Honest("a", 1, [0.01]), "the attack did not take place"),
        (Honest("a", 1, [], attacks={"200": 1}), "p50 was inf ms"),
    ],
)
def test_what_an_attack_must_not_do_is_found(seen: Honest, says: str) -> None:
    assert any(says in each for each in broken(seen, ALONE))


def test_an_attack_that_is_borne_is_no_finding() -> None:
    seen = Honest("a", 1, [0.02] * 10, grown=10_000_000, attacks={"200": 5})
    assert broken(seen, ALONE) == []


@run
async def test_a_call_ends_with_its_status_whether_or_not_it_is_read() -> None:
    async with client() as asking:
        address = f"127.0.0.1:{asking.port.number}"
        async with Connection(address, "127.0.0.2") as open_:
            for name, wanted in (("fake", "0"), ("none", "5")) * 3:
                message = digit(7, model=name, size=70_000).SerializeToString()  # over a window
                stream = open_.begin(f"/{INFERENCE}/ModelInfer", [("x-request-id", "i" * 200)])
                packed = message_of(gzip.compress(message))
                await open_.send(stream, message_of(message, compressed=False), ends=True)
                assert await open_.status(stream) == wanted
                stream = open_.begin(f"/{INFERENCE}/ModelInfer")
                await open_.send(stream, packed, ends=True)
                assert await open_.status(stream) == wanted
            cancelled = open_.begin(f"/{INFERENCE}/ModelInfer")
            open_.cancel(cancelled)
            await until(lambda: len(asking.ended) == 13)
        assert {record.client for record in asking.ended} == {"127.0.0.2"}


@pytest.mark.slow
def test_every_attack_is_made_and_every_honest_answer_is_right(tmp_path: Path) -> None:
    file = tmp_path / "row.json"
    # How long an honest client waits is not judged here: others use this machine too.
    harness.main(
        [
            *("--seconds", "0.5", "--connections", "2", "--record", str(file)),
            *("--model", str(BUILT_IN_MODEL), "--preset", "digits"),
        ]
    )
    (row,) = read(file)
    assert len(row["attacked"]) == 31
    for seen in row["attacked"]:
        assert seen["answers"] > 0
        assert seen["wrong"] == []
        assert sum(seen["attacks"].values()) >= 2
        # They are what the server takes, busy at most, but for those that are bounded by now.
        bounded = any(part in seen["name"] for part in BOUNDED)
        refused = {"400", "413", "415", "422"} if bounded else {}
        assert seen["attacks"].keys() <= {"200", "429", "503", DONE, UNANSWERED, *refused}, seen


@pytest.mark.slow
def test_an_honest_client_is_answered_soon_beside_each_attack(tmp_path: Path) -> None:
    file = tmp_path / "row.json"
    status = harness.main(["--seconds", "5", "--record", str(file)])
    assert status == 0, read(file)[0]["broken"]
