"""Serving with several processes: HTTP and decoding in workers, queue and engines in the main one.

    connections ─ one listening socket ─┬─ worker 0: HTTP, decoding ─┬─ main: batcher, engine
                                        └─ worker 1 ...             ─┘

Requests go over a socket for each worker, images and scores through shared memory. One queue takes
what all workers submit, so batches form across them. It is for machines with many cores, where one
interpreter's lock (the GIL) holds up decoding and HTTP.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from multiprocessing import forkserver, get_context

from service.edge.edge import EdgeOptions
from service.hosting.repository import Repository
from service.http.server import ListenError, outcome_of
from service.processes.shared import Memory, RemoteModel, SharedAdmission, SharedCounts
from service.processes.supervisor import Supervisor, WorkersError
from service.processes.worker import Outfit, work

__all__ = ["WorkersError", "prepare", "run_workers"]

# Connections that no worker has accepted yet: as many as uvicorn has it.
_BACKLOG = 2048


def prepare(modules: list[str]) -> None:
    """Start the process that forks workers, which reads their code and these `modules`.

    Best called before there are engines: it takes a second or more, beside them.
    """
    get_context("forkserver").set_forkserver_preload([work.__module__, *modules])
    forkserver.ensure_running()


def run_workers(
    repository: Repository,
    make_repository: Callable[[], Repository],
    listener: socket.socket,
    *,
    workers: int,
    drain_s: float,
    access_log: bool,
    metrics: bool = True,
    edge: EdgeOptions | None = None,
    configure: Callable[[], None],
    announce: Callable[[], None],
) -> bool:
    """As `run_server`, with HTTP and decoding in so many processes beside this one.

    The repository has the models, and decodes nothing; `make_repository` makes one without models
    for each worker, in which `configure` is called first. Both are pickled. Of the edge's limits,
    those on connections are shared out; those on one client's requests are each worker's.
    WorkersError: workers end as soon as they are started.
    """
    try:
        listener.listen(_BACKLOG)
    except OSError as error:  # another process bound the address too, and listened first
        raise ListenError(f"cannot listen: {error.strerror or error}") from error
    listener.setblocking(False)
    options = edge or EdgeOptions()
    connections, of_address = (
        ceil(limit / workers) for limit in (options.limits.connections, options.limits.per_address)
    )
    limits = replace(options.limits, connections=connections, per_address=of_address)
    outfit = Outfit(
        workers,
        [
            RemoteModel(
                pipeline.info,
                pipeline.prepare,
                pipeline.runner.classes,
                pipeline.runner.max_batch,
                pipeline.runner.device,
                pipeline.admission.max_images,
            )
            for pipeline in repository.models.values()
        ],
        Memory(),
        listener,
        make_repository,
        configure,
        replace(options, limits=limits),
        access_log,
        metrics,
        drain_s,
        os.getpid(),
    )
    max_batch = repository.metrics.max_batch
    crew, every = outfit.open_memory(max_batch)
    for pipeline, shared in zip(repository.models.values(), every, strict=True):
        pipeline.metrics.counts = SharedCounts(max_batch, shared.counts, workers)
        pipeline.admission = SharedAdmission(pipeline.admission, shared.inside, 0)
    repository.metrics.lost_decode_threads = crew.lost_threads
    repository.metrics.add(crew)
    supervisor = Supervisor(repository, outfit, crew, every, announce)
    supervisor.run(sockets=[])
    return outcome_of(supervisor)
