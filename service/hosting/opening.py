"""Creates the repository and opens the models that the settings describe."""

from collections.abc import Sequence

from service.engine.job_processes import JobParent
from service.engine.watchdog import Bounds
from service.hosting.finding import decoder, find_models
from service.hosting.hub import parse_address
from service.hosting.loading import open_models
from service.hosting.model_info import FailedModel
from service.hosting.presets import PHOTOGRAPHS
from service.hosting.reads import Reads
from service.hosting.repository import Repository
from service.hosting.swaps import Swaps
from service.settings import Settings, SettingsError


def make_repository(settings: Settings, parent: JobParent | None = None) -> Repository:
    """Return a repository without models, configured by the settings. `parent` is the process that
    will fork the models' job processes."""
    return Repository(
        max_batch=settings.max_batch,
        max_queue=settings.max_queue,
        max_body_bytes=settings.max_body_bytes,
        max_pixels=settings.max_pixels,
        decode_threads=settings.thread_count,
        decode_bytes=settings.decode_bytes,
        sample=PHOTOGRAPHS[0].read_bytes(),
        default=_default(settings),
        strict=settings.strict,
        shared_memory=settings.shared_memory,
        swaps=settings.may_change,
        parent=parent,
        processes=settings.processes,
        bounds=Bounds(settings.engine_timeout_s, settings.warm_up_timeout_s),
    )


def _default(settings: Settings) -> str | None:
    """Return the name of the default model, or None if the settings leave the choice to the
    repository.

    If one model is served twice (`beside`), the first is the default.
    """
    if settings.beside is not None and settings.default_model is None:
        address = settings.model and parse_address(settings.model)
        if address:  # the hub need not be asked
            return settings.model_name or address.name
        return find_models(settings)[0].name
    return settings.default_model


def add_models(
    repository: Repository,
    settings: Settings,
    expectations: Sequence[str] | None = None,
    reads: Reads | None = None,
) -> None:
    """Open the models and add them to the repository. A model that cannot be opened is added as
    broken.

    `reads` is the result of `begin_reading`, if that was called.

    Raises the errors of `open_models`, and SettingsError if a model on a hub is to be watched. If
    the settings allow models to change while they are served, sets `repository.changes`.
    """
    if settings.watch and settings.model is not None and parse_address(settings.model):
        raise SettingsError("--watch: a model on a hub cannot be watched; name a folder or a file")
    stamps = {}
    for opened in open_models(settings, expectations, reads):
        if isinstance(opened, FailedModel):
            repository.add_broken(opened)
            continue
        decode = decoder(opened.preprocessing, settings)
        repository.add(opened.info, opened.engines, decode, opened.reopen)
        stamps[opened.info.name] = opened.stamp
    if settings.may_change:
        repository.keep_default()
        repository.changes = Swaps(repository, settings, expectations, stamps)
