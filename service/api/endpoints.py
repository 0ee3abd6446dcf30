"""Maps paths to the endpoints of models. The server can answer requests to these paths without
FastAPI's router."""

from collections.abc import Mapping

from service.api import embeddings, v1
from service.api.v2 import infer_endpoint
from service.hosting.pipeline import Pipeline
from service.hosting.repository import Repository
from service.http.exchange import AnyEndpoint

# The paths of the default model, and functions that return the path of a named model.
_DEFAULTS = {v1.CLASSIFY_PATH: v1.model_path, embeddings.PATH: embeddings.embeddings_path}


def endpoints_of(repository: Repository) -> Mapping[str, AnyEndpoint]:
    """Return a mapping from each path to the endpoint of a model's current version. The mapping is
    updated whenever the models change."""
    endpoints: dict[str, AnyEndpoint] = {}

    def change(old: Pipeline | None, new: Pipeline | None) -> None:
        for path in [path for path, endpoint in endpoints.items() if endpoint.pipeline is old]:
            del endpoints[path]
        if new is not None:
            endpoints.update(_endpoints_of(new))
        default = repository.default
        for path, of_model in _DEFAULTS.items():
            if default is not None:
                endpoints[path] = endpoints[of_model(default.info.name)]
            else:
                endpoints.pop(path, None)

    for pipeline in repository.models.values():
        endpoints.update(_endpoints_of(pipeline))
    change(None, None)
    repository.on_change.append(change)
    return endpoints


def _endpoints_of(pipeline: Pipeline) -> Mapping[str, AnyEndpoint]:
    found: dict[str, AnyEndpoint] = {}
    for module in (v1, embeddings, infer_endpoint):
        found |= module.endpoints_of(pipeline)
    return found
