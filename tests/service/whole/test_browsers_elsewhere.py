"""Web pages of other origins, and paths and names that users guess: /healthz, /v1/models,
`image`."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from models import BUILT_IN_MODEL
from service.settings import SettingsError, load_settings
from tests.support.servers.several_models import convoy_serve

ORIGIN = "https://example.org"
SAMPLE = BUILT_IN_MODEL.parent / "samples/7_faint_on_grey.jpg"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("secret-key\n")
    keys.chmod(0o600)
    arguments = ("--cors-origin", ORIGIN, "--api-key-file", keys)
    with (
        convoy_serve("digits", "--device", "cpu", *arguments) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        yield client


def test_a_preflight_needs_no_key_and_names_what_may_be_sent(client: httpx.Client) -> None:
    asked = {"origin": ORIGIN, "access-control-request-method": "POST"}
    answer = client.options("/v1/classify", headers=asked)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "x-api-key" in answer.headers["access-control-allow-headers"]
    assert client.options("/v1/classify").status_code == 401  # not a preflight


def test_every_answer_may_be_read_by_that_origin(client: httpx.Client) -> None:
    for answer, status in (
        (client.post("/v1/classify", content=b"x"), 401),
        (client.post("/v1/classify", content=b"x", headers={"x-api-key": "secret-key"}), 415),
        (client.get("/nothing", headers={"x-api-key": "secret-key"}), 404),
    ):
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_health_needs_no_key(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"ready": True}


def test_the_models_and_the_field_image(client: httpx.Client) -> None:
    key = {"x-api-key": "secret-key"}
    (model,) = client.get("/v1/models", headers=key).json()["models"]
    assert (model["name"], model["default"], model["state"]) == ("digits", True, "ready")
    assert (model["classes"], model["image"]) == (10, [32, 32, 1])
    assert model["labels"] == [str(digit) for digit in range(10)]
    with SAMPLE.open("rb") as file:
        answer = client.post("/v1/classify", files={"image": file}, headers=key)
    assert answer.json()["results"][0]["predictions"][0]["label"] == "7"


@pytest.mark.parametrize("origin", ["example.org", "https://a.org/", "https://a,https://b", "null"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(SettingsError, match=r"--cors-origin: .* it must be an origin"):
        load_settings({"cors_origin": origin}, {})


def test_without_the_setting_no_other_origin_may_read(tmp_path: Path) -> None:
    with convoy_serve("digits", "--device", "cpu") as port:
        answer = httpx.get(f"http://127.0.0.1:{port}/healthz", headers={"origin": ORIGIN})
    assert not [name for name in answer.headers if name.startswith("access-control")]
