"""Serves by several processes: workers do HTTP and decoding, the main process has queue and
engines.

    connections ─ one listening socket ─┬─ worker 0: HTTP, decoding ─┬─ main: batcher, engine
                                        └─ worker 1 ...             ─┘

Requests go over a socket for each worker, images and scores through shared memory. One queue takes
what all workers submit, so batches form across them. It is for machines with many cores, where one
interpreter's lock (the GIL) holds up HTTP and decoding.
"""

from service.processes.supervisor import WorkersError, prepare, run_workers
from service.processes.worker import Options

__all__ = ["Options", "WorkersError", "prepare", "run_workers"]
