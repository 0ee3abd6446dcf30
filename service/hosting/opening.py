"""A repository as the settings say, with the models that they name."""

from collections.abc import Sequence

from service.engine.watchdog import Bounds
from service.hosting.loading import decoder, open_models
from service.hosting.repository import Repository
from service.settings import Settings, SettingsError


def make_repository(
    settings: Settings, *, decode_threads: int, decode_bytes: int | None = None
) -> Repository:
    """A repository without models; `decode_bytes` overrides the settings."""
    return Repository(
        max_batch=settings.max_batch,
        max_queue=settings.max_queue,
        max_body_bytes=settings.max_body_bytes,
        decode_threads=decode_threads,
        decode_bytes=settings.decode_bytes if decode_bytes is None else decode_bytes,
        default=settings.default_model,
        bounds=Bounds(settings.engine_timeout_s, settings.warm_up_timeout_s),
    )


def add_models(
    repository: Repository, settings: Settings, expectations: Sequence[str] | None = None
) -> None:
    """Open the models; ModelError, or SettingsError if the default is not among them."""
    for opened in open_models(settings, expectations):
        decode = decoder(opened.classifier, settings)
        repository.add(opened.info, opened.engines, decode, opened.reopen)
    if settings.default_model not in (None, *repository.models):
        raise SettingsError(
            f"--default-model: {settings.default_model} is not served; "
            f"there are {', '.join(repository.models)}"
        )
