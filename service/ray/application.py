"""Runs Convoy's application in each replica of a Ray Serve deployment. Convoy's queue forms the
batches, not Ray's.

    client ── Ray's proxy ── replica: application ── decode ── queue ── engine
              (routes)       (Convoy's routes, bounds and answers)
"""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial

import ray
from fastapi import FastAPI
from ray import serve

from service.api.app import App, create_app
from service.hosting.opening import add_models, make_repository
from service.hosting.repository import Repository
from service.http.metrics_port import metrics_port
from service.http.server import LEAVE_S
from service.ray.autoscaling import WAITING
from service.settings import Settings, SettingsError

# Settings of Convoy's own HTTP server. Ray's proxy receives the requests instead, so accepting
# these settings would only seem to protect the service.
_OF_THE_SERVER = (
    *("api_key_file", "cors_origin", "grpc_port", "max_per_client", "max_rate", "otel"),
    "shared_memory",
)


def application(settings: Settings) -> serve.Application:
    """Build the Ray Serve application. Ray's configuration names this function in `import_path`,
    and lists settings of `convoy serve` in `args`. Raises SettingsError for a setting of Convoy's
    HTTP server."""
    refused = [name for name in _OF_THE_SERVER if name in settings.model_fields_set]
    if refused:
        raise SettingsError(
            f"{', '.join(refused)}: Ray's proxy receives the requests instead of Convoy's server,"
            " so these settings have no effect; configure a proxy in front of Ray instead"
        )
    replica = serve.ingress(lambda: build(settings))(Replica)
    return serve.deployment(name="convoy")(replica).bind()


class Replica:
    """Answers Ray's health checks and requests for autoscaling counts. `app` answers the requests
    of clients."""

    app: App  # set by `serve.ingress`

    async def check_health(self) -> None:
        """Raise an error if Convoy is not ready. Ray replaces a replica that stays unready."""
        self._repository.check_ready()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return this replica's counts for the autoscaling policy."""
        return {WAITING: float(self._repository.waiting)}

    @property
    def _repository(self) -> Repository:
        repository: Repository = self.app.state.repository
        return repository


def build(settings: Settings) -> App:
    """Return the application of one replica. By default, it has as many threads as Ray assigned
    CPUs to the replica. Raises ModelError or SettingsError."""
    if not settings.threads:
        assigned = ray.get_runtime_context().get_assigned_resources()
        settings = settings.model_copy(update={"threads": max(1, int(assigned.get("CPU", 1)))})
    repository = make_repository(settings)
    add_models(repository, settings)
    return create_app(repository, metrics=False, lifespan=partial(_lifespan, repository, settings))


@asynccontextmanager
async def _lifespan(repository: Repository, settings: Settings, _: FastAPI) -> AsyncIterator[None]:
    """Warm up the models before Ray sends requests. At the end, finish the accepted requests and
    close the models."""
    with ExitStack() as stack:
        if settings.metrics_port is not None:
            exposition = repository.metrics.exposition
            stack.enter_context(metrics_port(settings.host, settings.metrics_port, exposition))
        await repository.warm_up()
        yield
        if not await repository.drain(settings.drain_s):
            await repository.give_up()
        await repository.close(LEAVE_S)
