"""Read last by the process that forks workers: what is there then stays shared among them.

The garbage collector writes to every object that it looks at, and so takes a copy of its page: it
is told to leave alone what there is (`gc.freeze`).
"""

import gc

gc.collect()
gc.freeze()
