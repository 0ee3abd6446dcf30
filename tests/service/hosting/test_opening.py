"""A repository opened from settings, and its application on an ASGI server other than Convoy's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from models import BUILT_IN_MODEL, DeviceKind
from service.api.app import create_app
from service.hosting import opening
from service.hosting.opening import add_models, make_repository
from service.settings import Settings, SettingsError
from tests.support import PATIENCE_S

pytestmark = pytest.mark.anyio

SETTINGS = Settings(device=DeviceKind.CPU, threads=1, max_batch=2, max_queue=3)


async def test_the_settings_bound_the_repository() -> None:
    repository = make_repository(SETTINGS)
    add_models(repository, SETTINGS)
    (pipeline,) = repository.models.values()
    assert pipeline.runner.max_batch == 2
    assert pipeline.admission.max_images == 5
    assert repository.max_body_bytes == SETTINGS.max_body_bytes
    await repository.close(PATIENCE_S)


async def test_a_default_model_that_is_not_served_is_refused() -> None:
    settings = SETTINGS.model_copy(update={"default_model": "other"})
    repository = make_repository(settings)
    with pytest.raises(SettingsError, match="other is not served; the models are digits"):
        add_models(repository, settings)
    await repository.close(PATIENCE_S)


async def test_a_model_of_a_hub_is_the_default_beside_itself_without_asking_the_hub(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "find_models", lambda _: pytest.fail("the hub was asked"))
    hub = SETTINGS.model_copy(update={"beside": "resize=40", "model": Path("hf://org/rose")})
    for settings, name in (
        (hub, "rose"),
        (hub.model_copy(update={"model_name": "mine"}), "mine"),
    ):
        repository = make_repository(settings)
        assert repository._default == name
        await repository.close(PATIENCE_S)


async def test_the_first_of_a_model_beside_itself_is_the_default() -> None:
    settings = SETTINGS.model_copy(update={"beside": "resize=40"})
    repository = make_repository(settings)
    add_models(repository, settings)
    assert list(repository.models) == ["digits", "digits-40"]
    assert repository.default is repository.models["digits"]
    await repository.close(PATIENCE_S)


async def test_another_asgi_server_runs_the_application_within_its_lifespan() -> None:
    repository = make_repository(SETTINGS)
    add_models(repository, SETTINGS)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await repository.warm_up()
        yield
        assert await repository.drain(PATIENCE_S)
        await repository.close(PATIENCE_S)

    app = create_app(repository, lifespan=lifespan)
    image = (BUILT_IN_MODEL.parent / "samples" / "3_ink_on_paper.jpg").read_bytes()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://convoy") as client:
        assert (await client.post("/v1/classify", content=image)).status_code == 503
        async with app.router.lifespan_context(app):
            answer = await client.post("/v1/classify?top_k=1", content=image)
            assert answer.json()["results"][0]["predictions"][0]["label"] == "3"
            assert repository.waiting == 0
        assert (await client.post("/v1/classify", content=image)).status_code == 503
