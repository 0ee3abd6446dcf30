"""Begins to read the models at the start of a server, while this imports the rest of it.

    settings ─┬─ this process ── imports the server ─ listens ── opens them ── warms up ── serves
              └─ a copy of it ── imports ONNX ─ reads and proves the models ┘

Where a GPU may serve, models are read by the process that serves them, since it plans of what they
are made of.
"""

from collections.abc import Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from models import ModelError, all_on_cpu
from service.hosting.forked import CAN_FORK, forked
from service.settings import Settings

if TYPE_CHECKING:
    from service.hosting.finding import ModelFile, ReadModel

Reads = Generator["Sequence[ModelFile] | ReadModel | ModelError", None, None]
"""Yields the models' files, and then, one by one, what is in them or why it cannot be read."""


def begin_reading(settings: Settings, expectations: Sequence[str] | None) -> Reads:
    """Begin to read and to prove the models that the settings name, in a copy of this process, if
    the CPU will serve them; else they are read later.

    This process should have no other threads yet. Raises EngineError for `cuda:all` without a GPU.
    """
    if not CAN_FORK or not all_on_cpu(settings.device_choices):
        return read_models(settings, expectations)
    read = partial(read_models, settings, expectations, prove=True)
    return forked(read, _lost, settings.warm_up_timeout_s)


def _lost(how: str) -> ModelError:
    return ModelError(f"the models cannot be read: the process for that {how}")


def read_models(
    settings: Settings, expectations: Sequence[str] | None, *, prove: bool = False
) -> Reads:
    """Yield what Reads does; with `prove` the CPU is known to serve, and engines need no proof any
    more. Raises what `check_models` raises."""
    # It brings all that reads ONNX.
    from service.hosting.finding import check_models  # noqa: PLC0415
    from service.hosting.reading import read_file, read_proved  # noqa: PLC0415

    files = check_models(settings, expectations)
    yield files
    read = read_proved if prove else read_file
    for file in files:
        try:
            yield read(file, settings, expectations)
        except ModelError as error:
            yield error
