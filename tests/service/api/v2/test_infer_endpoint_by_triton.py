"""Inference on a real server with NVIDIA's client, tritonclient, over both protocols, and by
hand."""

import asyncio
import base64
import gzip
import json
import math
import zlib
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http.aio as http_aio
from tritonclient.utils import InferenceServerException

from models import BUILT_IN_MODEL, DeviceKind, Inner, load_classifier, open_engine
from tests.support.servers.several_models import CHANNELS
from tests.support.service.triton import (
    UNKNOWN,
    Tensor,
    TritonClient,
    Wanted,
    files,
    files_input,
    has_status,
    pixels_input,
    response_of,
    samples,
    shows,
)


@pytest.mark.parametrize("shape", [[10], [10, 1]])
def test_images_are_decoded_by_the_server(client: TritonClient, shape: list[int]) -> None:
    # More than a batch has.
    answer = client.infer("digits", [files_input(*samples(*range(10)), shape=shape)])
    assert answer.as_numpy("logits").dtype == np.float32
    assert answer.as_numpy("logits").argmax(axis=1).tolist() == list(range(10))


@pytest.mark.parametrize("asks_binary", [True, False])
@pytest.mark.parametrize("sends_binary", [True, False])
def test_pixels_are_taken_and_scores_given_both_ways(
    client: TritonClient, sends_binary: bool, asks_binary: bool
) -> None:
    pixels = np.zeros((2, 4, 6, 3), np.uint8)
    pixels[0] = (10, 20, 30)
    pixels[1, :2, :, 1] = 100
    outputs = [Wanted("amount", binary=asks_binary)]
    answer = client.infer(
        CHANNELS, [pixels_input(pixels, binary=sends_binary)], outputs=outputs, request_id="me"
    )
    assert answer.as_numpy("amount").tolist() == [[10, 20, 30], [0, 50, 0]]
    if client.protocol == "http":
        assert ("data" in answer.get_output("amount")) is not asks_binary
    response = response_of(answer)
    assert (response["id"], response["model_name"], response["model_version"]) == (
        "me",
        CHANNELS,
        "3",
    )


@pytest.mark.parametrize("binary", [(True, True), (True, False), (False, True), (False, False)])
def test_embeddings_are_a_second_output(client: TritonClient, binary: tuple[bool, bool]) -> None:
    classifier = load_classifier(BUILT_IN_MODEL)
    assert isinstance(classifier.embedding, Inner)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 1), np.uint8)
    engine = open_engine(classifier, device=DeviceKind.CPU, max_batch=3, threads=1)
    expected = engine.run(pixels, [classifier.embedding.name])
    engine.close()
    outputs = client.get_model_metadata("digits")["outputs"]
    assert [(each["name"], each["shape"]) for each in outputs] == [("logits", [-1, 10])]
    logits, embedding = Wanted("logits", binary=binary[0]), Wanted("embedding", binary=binary[1])
    for wanted in ([logits, embedding], [embedding, logits], [embedding]):
        answer = client.infer("digits", [pixels_input(pixels)], outputs=wanted)
        assert [each["name"] for each in response_of(answer)["outputs"]] == [
            each.name for each in wanted
        ]
        vectors = answer.as_numpy("embedding")
        np.testing.assert_allclose(vectors, expected.inner[classifier.embedding.name], atol=1e-4)
        if logits in wanted:
            np.testing.assert_allclose(answer.as_numpy("logits"), expected.scores, atol=1e-4)
    (alone,) = response_of(client.infer("digits", [pixels_input(pixels)]))["outputs"]
    assert alone["name"] == "logits"  # which alone are sent unasked


@pytest.mark.parametrize("answered_as", [None, "gzip", "deflate"])
@pytest.mark.parametrize("sent_as", [None, "gzip", "deflate"])
def test_bodies_may_be_compressed_both_ways(
    client: TritonClient, sent_as: str | None, answered_as: str | None
) -> None:
    pixels = np.full((60, 4, 6, 3), 7, np.uint8)  # so many that compressing is worth it
    options: dict[str, Any] = {"compression_algorithm": sent_as}
    if client.protocol == "http":
        options = {
            "request_compression_algorithm": sent_as,
            "response_compression_algorithm": answered_as,
        }
    answer = client.infer(CHANNELS, [pixels_input(pixels)], **options)
    assert (answer.as_numpy("amount") == 7).all()


@pytest.mark.parametrize("binary", [True, False])
def test_the_classification_extension_ranks_and_names(client: TritonClient, binary: bool) -> None:
    output = Wanted("amount", classes=2, binary=binary)
    pixels = np.full((1, 4, 6, 3), (1, 3, 2), np.uint8)
    ranked = client.infer(CHANNELS, [pixels_input(pixels)], outputs=[output]).as_numpy("amount")
    assert ranked.shape == (1, 2)
    texts = [text.decode() if isinstance(text, bytes) else text for text in ranked.ravel().tolist()]
    assert texts == ["3.000000:1:green", "2.000000:2:blue"]


def test_priority_timeout_and_parameters_of_ones_own_are_taken(client: TritonClient) -> None:
    answer = client.infer(
        "digits", files(7), priority=2, timeout=30_000_000, parameters={"mine": "x"}
    )
    shows(7)(answer)


def test_what_cannot_be_done_within_its_timeout_is_refused(client: TritonClient) -> None:
    with pytest.raises(InferenceServerException, match="deadline") as refused:
        client.infer("digits", files(7), timeout=1)  # a microsecond
    assert has_status(refused.value, "504")


@pytest.mark.parametrize(
    ("inputs", "outputs", "status", "says"),
    [
        ([files_input(b"no image")], None, "415", "this is the text"),
        ([files_input(samples(0)[0][:99])], None, "400", "the PNG is truncated"),
        ([files_input(*samples(1), b"")], None, "400", "element 2 of input 'image' is empty"),
        ([pixels_input(np.zeros((1, 9, 9, 1), np.uint8))], None, "400", "[n, 32, 32, 1]"),
        ([], None, "400", "expected 1 input but got 0"),
        (None, ["labels"], "400", "unexpected inference output 'labels'"),
        ([Tensor("image", "BYTES", [1])], None, "400", "has no `data`"),
    ],
)
def test_a_request_that_makes_no_sense_is_told_so(
    client: TritonClient,
    inputs: list[Any] | None,
    outputs: list[str] | None,
    status: str,
    says: str,
) -> None:
    wanted = [Wanted(name) for name in outputs] if outputs else None
    with pytest.raises(InferenceServerException) as refused:
        client.infer("digits", files(7) if inputs is None else inputs, outputs=wanted)
    assert has_status(refused.value, status)
    assert says in refused.value.message()
    shows(7)(client.infer("digits", files(7)))


def test_planes_under_another_name_are_refused_saying_what_to_send(
    client: TritonClient,
) -> None:
    planes = Tensor("image", "FP32", [1, 3, 4, 6], np.zeros((1, 3, 4, 6), np.float32))
    with pytest.raises(InferenceServerException, match=r"takes UINT8 RGB pixels.* 'x' takes FP32"):
        client.infer(CHANNELS, [planes])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_in_binary_may_be_any_as_perf_analyzers_are(
    client: TritonClient, value: float
) -> None:
    planes = np.full((2, 3, 4, 6), 2, np.float32)
    planes[1, 0, 0, 0] = value
    sent = Tensor("x", "FP32", planes.shape, planes)
    answer = client.infer(CHANNELS, [sent], outputs=[Wanted("amount")])
    scores = answer.as_numpy("amount")
    assert scores[0].tolist() == [2, 2, 2]  # its neighbour is what it would be alone
    assert not np.isfinite(scores[1]).all()
    with pytest.raises(InferenceServerException, match="scores for tensor 2"):
        client.infer(CHANNELS, [sent], outputs=[Wanted("amount", classes=1)])


def test_nan_in_json_is_answered_by_nan_in_json_as_by_triton(address: str) -> None:
    for first, expected in ((math.nan, [math.nan] * 3), (1.0, [1.0, 2.0, 2.0])):
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3, 4, 6]}
        body = json.dumps({"inputs": [{**tensor, "data": [first] + [1.0] * 23 + [2.0] * 48}]})
        answer = httpx.post(f"http://{address}/v2/models/{CHANNELS}/infer", content=body)
        assert answer.status_code == 200, answer.text
        scores = json.loads(answer.text)["outputs"][0]["data"]
        assert scores == pytest.approx(expected, nan_ok=True)


def test_requests_in_flight_together_keep_their_answers(client: TritonClient) -> None:
    sent = [n % 10 for n in range(40)]
    waiting = [client.async_infer("digits", [files_input(*samples(digit))]) for digit in sent]
    found = [int(result().as_numpy("logits").argmax()) for result in waiting]
    assert found == sent


@pytest.mark.parametrize(("protocol", "kind"), [("http", http_aio), ("grpc", grpc_aio)])
def test_the_asynchronous_client_is_answered_too(
    addresses: dict[str, str], protocol: str, kind: Any
) -> None:
    async def main() -> None:
        async with kind.InferenceServerClient(addresses[protocol]) as client:
            assert await client.is_server_ready()
            sent = list(range(10))
            inputs = [[files_input(*samples(digit)).by(protocol)] for digit in sent]
            found = await asyncio.gather(*(client.infer("digits", each) for each in inputs))
            assert [int(a.as_numpy("logits").argmax()) for a in found] == sent
            with pytest.raises(InferenceServerException, match="unknown model"):
                await client.get_model_config("no")

    asyncio.run(main())


def test_statistics_and_metrics_count_what_was_asked(client: TritonClient, address: str) -> None:
    def counts() -> tuple[int, int, int]:
        (model,) = client.get_inference_statistics(CHANNELS)["model_stats"]
        return (
            model["inference_stats"]["success"]["count"],
            model["inference_count"],
            model["execution_count"],
        )

    before = counts()
    for _ in range(2):
        client.infer(CHANNELS, [pixels_input(np.zeros((3, 4, 6, 3), np.uint8))])
    after = counts()
    assert [b - a for a, b in zip(before, after, strict=True)] == [2, 6, 2]
    text = httpx.get(f"http://{address}/metrics").text
    label = f'{{model="{CHANNELS}",version="3"}}'
    for name, value in zip(("request_success", "count", "exec_count"), after, strict=True):
        assert f"nv_inference_{name}{label} {value}\n" in text


# --- without the client --------------------------------------------------------------------------


def test_a_raw_body_needs_no_json(address: str) -> None:
    url = f"http://{address}/v2/models/digits/infer"
    headers = {"Inference-Header-Content-Length": "0"}
    answer = httpx.post(url, content=samples(3)[0], headers=headers)
    assert answer.status_code == 200, answer.text
    length = int(answer.headers["inference-header-content-length"])
    assert answer.headers["content-type"] == "application/octet-stream"
    scores = np.frombuffer(answer.content[length:], "<f4")
    assert scores.argmax() == 3


def test_a_raw_body_of_the_length_of_the_models_own_input_is_that(address: str) -> None:
    url = f"http://{address}/v2/models/{CHANNELS}/infer"
    headers = {"Inference-Header-Content-Length": "0"}
    planes = np.repeat(np.array([1.5, -2, 3], "<f4"), 24)
    answer = httpx.post(url, content=planes.tobytes(), headers=headers)
    assert answer.status_code == 200, answer.text
    length = int(answer.headers["inference-header-content-length"])
    assert np.frombuffer(answer.content[length:], "<f4").tolist() == [1.5, -2, 3]
    pixels = np.tile(np.array([7, 8, 9], np.uint8), 24).tobytes()
    answer = httpx.post(url, content=pixels, headers=headers)
    length = int(answer.headers["inference-header-content-length"])
    assert np.frombuffer(answer.content[length:], "<f4").tolist() == [7, 8, 9]
    answer = httpx.post(url, content=bytes(73), headers=headers)
    assert answer.status_code == 400
    says = "the 288 bytes of FP32 3×4×6 as input 'x' or the 72 bytes of UINT8 4×6×3 as input 'im"
    assert says in answer.json()["error"]


def test_json_alone_is_enough(address: str) -> None:
    tensor = {
        "name": "image",
        "datatype": "BYTES",
        "shape": [2],
        "data": [base64.b64encode(file).decode() for file in samples(4, 2)],
    }
    answer = httpx.post(f"http://{address}/v2/models/digits/infer", json={"inputs": [tensor]})
    assert answer.headers["content-type"] == "application/json"
    (output,) = answer.json()["outputs"]
    assert np.array(output["data"]).reshape(output["shape"]).argmax(axis=1).tolist() == [4, 2]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_bomb_is_refused(address: str, coding: str) -> None:
    bomb = bytes(200_000_000)
    body = gzip.compress(bomb, 1) if coding == "gzip" else zlib.compress(bomb, 1)
    assert len(body) < 1_000_000
    answer = httpx.post(
        f"http://{address}/v2/models/digits/infer",
        content=body,
        headers={"Content-Encoding": coding},
    )
    assert answer.status_code == 413
    assert "inflates to more" in answer.json()["error"]


def test_each_model_classifies_under_its_own_path_and_none_without(
    address: str, tmp_path: Path
) -> None:
    url = f"http://{address}/v1"
    for digit in (1, 8):
        answer = httpx.post(f"{url}/models/digits/classify?top_k=1", content=samples(digit)[0])
        assert answer.json()["model"] == "digits"
        assert answer.json()["results"][0]["predictions"][0]["index"] == digit
    answer = httpx.post(f"{url}/models/{CHANNELS}/classify", content=samples(0)[0])
    assert {p["label"] for p in answer.json()["results"][0]["predictions"]} == {
        *("red", "green", "blue")
    }
    answer = httpx.post(f"{url}/classify", content=samples(0)[0])
    assert answer.status_code == 404
    assert "/v1/models/digits/classify" in answer.json()["error"]
    answer = httpx.post(f"{url}/models/no/classify", content=samples(0)[0])
    assert answer.status_code == 404
    assert answer.json() == {"error": f"{UNKNOWN}; this server's models: {CHANNELS}, digits"}
    answer = httpx.post(f"{url}/models/digts/classify", content=samples(0)[0])
    assert "did you mean 'digits'?" in answer.json()["error"]
