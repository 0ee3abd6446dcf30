"""Reads the models in a forked process when a server starts, while the server imports its modules.

    settings ─┬─ this process ─── imports the server ─ listens ─ opens models ── warms up ── serves
              └─ forked process ─ imports ONNX ─ reads and tests models ─┘

If a GPU may serve a model, the server's process reads the models itself, because it needs their
graphs to plan the kernel launches.
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
"""Yields the list of the models' files. Then yields, for each file, the model or the error that
says why it cannot be read."""


def begin_reading(settings: Settings, expectations: Sequence[str] | None) -> Reads:
    """Begin to read the models that the settings name. If the CPU will serve the models, a copy of
    this process reads and tests them. Otherwise, this process reads them later.

    Call this while the process has no other threads. Raises EngineError for `cuda:all` without a
    GPU.
    """
    if not CAN_FORK or not all_on_cpu(settings.device_choices):
        return read_models(settings, expectations)
    read = partial(read_models, settings, expectations, prove=True)
    return forked(read, _lost, settings.warm_up_timeout_s)


def _lost(how: str) -> ModelError:
    return ModelError(f"the models cannot be read: the process that reads them {how}")


def read_models(
    settings: Settings, expectations: Sequence[str] | None, *, prove: bool = False
) -> Reads:
    """Yield the list of the models' files, and then one model or error per file, as `Reads`
    describes. With `prove`, also run the self-test of each model that the CPU will serve. Engines
    of such a model then need no test. Raises the errors of `check_models`."""
    # These modules import ONNX.
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
