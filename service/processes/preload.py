"""Read last by the process that forks workers: what is there then stays shared among them.

The garbage collector writes to every object that it looks at, and so takes a copy of its page: it
is told to leave alone what there is (`gc.freeze`).

A signal may be for the whole group of processes, as Ctrl-C is, or systemd's SIGTERM. This one has
to outlive the workers, or nobody would know how they end; and what it ignores, so do they, until
they have servers to do something about it.
"""

import gc
import signal

for _group in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(_group, signal.SIG_IGN)
gc.collect()
gc.freeze()
