"""Serving with several processes: HTTP and decoding in workers, the engines in one.

    connections ─ one listening socket ─┬─ worker 0 ─┐  slots: images ->, <- scores
                                        ├─ worker 1 ─┼─ a socket each: records ─ engine's process
                                        └─ ...      ─┘  board: state, L(n), counts

Images and scores lie in memory that a worker and the engine's process share; only short records go
through sockets. One batcher takes what all workers submit, so batches form across them.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import ceil

import uvicorn

from service.hosting.repository import Repository
from service.http.edge import EdgeOptions
from service.http.server import outcome_of
from service.processes.board import Board
from service.processes.crew import Crew
from service.processes.supervisor import Supervisor, WorkersError, prepare
from service.processes.worker import Outfit, RemoteModel
from service.telemetry.counts import Counts

__all__ = ["WorkersError", "prepare", "run_workers"]


def run_workers(
    repository: Repository,
    make_repository: Callable[..., Repository],
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

    The repository has the models, and decodes nothing; `make_repository` makes one like it, without
    models, for each worker, in which `configure` is called first. All of these are pickled. Of the
    edge's limits, connections are shared among the workers; requests a client are each worker's.
    """
    most = repository.metrics.max_batch
    models = []
    for pipeline in repository.models.values():
        board = Board(workers, pipeline.max_batch, most)
        pipeline.metrics.counts = Counts(most, board.rows)
        models.append(
            RemoteModel(
                pipeline.info,
                pipeline.classes,
                pipeline.max_batch,
                pipeline.device,
                pipeline.prepare,
                board,
                # Beside those inside there may be as many again whose requests were given up while
                # a batch with one of their images runs. Pages that are not touched cost nothing.
                slots=2 * repository.max_images(pipeline.max_batch),
            )
        )
    make = partial(make_repository, process=os.getpid(), processes=workers)
    options = edge or EdgeOptions()
    limits = options.limits
    share = replace(
        limits,
        connections=ceil(limits.connections / workers),
        per_address=ceil(limits.per_address / workers),
    )
    options = replace(options, limits=share)
    outfit = Outfit(models, make, access_log, metrics, options, configure, drain_s, Crew(workers))
    supervisor = Supervisor(repository, outfit, listener, workers=workers, announce=announce)
    with asyncio.Runner(
        loop_factory=uvicorn.Config("", log_config=None).get_loop_factory()
    ) as runner:
        runner.run(supervisor.run())
    return outcome_of(supervisor)
