"""Provides threads that call functions for an event loop.

Passing a call to such a thread takes less than half the time of `loop.run_in_executor`, because it
needs at most one future instead of two. This matters for small models: if a model takes a
millisecond, passing work to threads is most of the time that the server adds.

The threads are daemons, so a thread that is stuck in a device driver cannot keep the process alive.
A thread cannot be ended from outside. A job that exceeds its time limit fails with ThreadLostError,
and its result is discarded. A new thread replaces the stuck thread, which ends when its call
returns.
"""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import weakref
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from queue import SimpleQueue
from time import monotonic
from typing import Any, Protocol, TypeVar

from typing_extensions import override

from service.errors import ThreadLostError
from service.machine.cores import keep_on, this_core

T = TypeVar("T")
R = TypeVar("R")

# Called in the event loop with a function's result, or with the error that it raised.
OnDone = Callable[[R, Exception | None], None]

# Jobs with a time limit are checked every _PERIOD_S, or _LOOKS times within a shorter limit.
_PERIOD_S = 0.5
_LOOKS = 8

_log = logging.getLogger("convoy")


class StrayError(Exception):
    """Raised in place of SystemExit, StopIteration or another exception that a job must not
    raise."""


class Withdrawable(Protocol):
    """The interface of work that can be cancelled after it was posted."""

    def withdraw(self) -> None:
        """Cancel the work if it has not begun. Otherwise, discard its result."""


@dataclass(eq=False, slots=True)
class Job:
    """Holds a function call that waits for a thread or is running."""

    function: Callable[[Any], Any]
    argument: Any
    then: OnDone[Any] | None  # None once it is withdrawn
    bound_s: float
    loop: asyncio.AbstractEventLoop
    spent_s: float = -1.0  # seconds in its thread, by `look`; negative: not yet seen
    open: bool = True  # until the event loop knows its outcome
    outcome: tuple[Any, Exception | None] = (None, None)
    ended: LockType | None = None  # released at its end, while the event loop blocks on it

    def withdraw(self) -> None:
        """Never call `then`. If `function` has not begun, never call it either."""
        self.then = None


class _Jobs:
    """Queues jobs, and wakes a thread faster than SimpleQueue.

    SimpleQueue wakes a thread while the caller holds the GIL, so the thread has to sleep again
    until the GIL is free. Writing to an eventfd releases the GIL first.
    """

    def __init__(self) -> None:
        self._jobs: deque[Job | None] = deque()
        self._count = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._count).atexit = False

    def put(self, job: Job | None) -> None:
        """Add a job, or None to end a thread."""
        self._jobs.append(job)
        os.eventfd_write(self._count, 1)

    def get(self) -> Job | None:
        """Wait for the next job, and return it. None means that the thread must end."""
        os.read(self._count, 8)  # subtracts 1; unlike eventfd_read it retries after a signal
        return self._jobs.popleft()


class _Thread(threading.Thread):
    """Runs the jobs of a pool in a thread. The event loop reads the attribute `job` to find jobs
    that hang."""

    def __init__(self, pool: "ThreadPool", number: int) -> None:
        super().__init__(name=f"{pool.name}-{number}", daemon=True)
        self._pool = pool
        self.job: Job | None = None
        self.lost = False
        self.start()

    @override
    def run(self) -> None:
        """Run jobs until the queue returns None."""
        pool = self._pool
        del self._pool  # a cycle, which would keep a closed pool's file open
        if pool.nice and sys.platform == "linux":  # elsewhere niceness is the whole process's
            thread = threading.get_native_id()
            nice = os.getpriority(os.PRIO_PROCESS, thread) + pool.nice
            os.setpriority(os.PRIO_PROCESS, thread, nice)
        while not self.lost:
            self.job = job = pool.jobs.get()
            if job is None:
                return
            if job.then is not None:
                job.outcome = outcome_of(job.function, job.argument)
            ended = job.ended
            if ended is not None:
                ended.release()
            if job.ended is None:  # the event loop does not block on it, or no longer
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    job.loop.call_soon_threadsafe(pool.settle, job, *job.outcome)
            self.job = None
            del job  # an idle thread must not keep an image alive


class ThreadPool:
    """Runs a fixed number of threads, which begin jobs in the order of `post`. Not thread-safe: use
    it from one event loop.

    A pool without threads runs each job inside `post`. This suits jobs that take less time than
    passing them to a thread. A job may take `bound_s` seconds from the moment at which a thread
    starts it.
    """

    def __init__(
        self, name: str, threads: int, *, bound_s: float = inf, replaced: bool = True, nice: int = 0
    ) -> None:
        """Start the threads. `nice` lowers their priority as nice(1) does.

        With `replaced`, new threads replace stuck threads. Otherwise, jobs wait until a stuck
        thread is free.
        """
        self.name = name
        self.nice = nice
        self.jobs: _Jobs | SimpleQueue[Job | None]
        self.jobs = _Jobs() if hasattr(os, "eventfd") else SimpleQueue()
        self.lost = 0  # threads so far
        self._bound_s = bound_s
        self._replaced = replaced
        self._open = 0  # jobs with a bound whose outcome is not known
        self._timer: asyncio.Handle | None = None
        self._looked = 0.0
        self._closed = False
        self._core: int | None = None  # that the threads are pinned to
        self._threads = [_Thread(self, number) for number in range(threads)]

    def post(
        self,
        function: Callable[[T], R],
        argument: T,
        then: OnDone[R],
        bound_s: float | None = None,
        patience_s: float = 0.0,
    ) -> Job | None:
        """Call `function(argument)` in a thread. Then call `then` with the outcome, in the event
        loop.

        `post` itself blocks the event loop until the job is done, for at most `patience_s`. Returns
        None if `then` was called before `post` returned. The second argument of `then` is the
        exception that `function` raised, or None. StrayError replaces a BaseException that is not
        an Exception. ThreadLostError means that the job exceeded its time limit or that its thread
        died.
        """
        if not self._threads:
            then(*outcome_of(function, argument))
            return None
        bound_s = self._bound_s if bound_s is None else bound_s
        loop = asyncio.get_running_loop()
        job = Job(function, argument, then, bound_s, loop)
        if bound_s < inf:
            self._open += 1
            if self._timer is None:
                self._looked = monotonic()
                self._timer = loop.call_later(_period(bound_s), self._on_timer, loop)
        self._keep_on(this_core() if patience_s else None)
        if not patience_s:
            self.jobs.put(job)
            return job
        job.ended = ended = allocate_lock()
        ended.acquire()
        self.jobs.put(job)
        if not ended.acquire(timeout=patience_s):
            self._keep_on(None)
            job.ended = None
            if not ended.acquire(blocking=False):
                return job
        self.settle(job, *job.outcome)
        return None

    def run(
        self,
        function: Callable[[T], R],
        argument: T,
        bound_s: float | None = None,
        patience_s: float = 0.0,
    ) -> "asyncio.Future[R]":
        """Post a job like `post`, but return a future. Cancelling the future withdraws the job."""
        return promised(lambda then: self.post(function, argument, then, bound_s, patience_s))

    def close(self) -> None:
        """End every thread after its last job, without waiting."""
        self._closed = True
        for _ in self._threads:
            self.jobs.put(None)

    def look(self, passed_s: float) -> None:
        """Fail the jobs that have exceeded their time limit. `passed_s` is the time since the last
        call of this method."""
        for number, thread in enumerate(self._threads):
            job = thread.job
            if thread.lost:  # it could not be replaced
                self._replace(number)
            elif not thread.is_alive():
                if job is not None or not self._closed:
                    self._lose(number, job, "died", replaced=True)
            elif job is None or not job.open or job.bound_s == inf:
                continue
            elif job.spent_s < 0:
                job.spent_s = 0.0
            else:
                job.spent_s += passed_s
                if job.spent_s >= job.bound_s:
                    stuck = f"was stuck for {job.spent_s:.1f} s"
                    self._lose(number, job, stuck, replaced=self._replaced)

    def settle(self, job: Job, result: Any, error: Exception | None) -> None:
        """Call the job's `then` when the job ends or is lost. Only the first call for a job has an
        effect."""
        if not job.open:
            return
        job.open = False
        self._open -= job.bound_s < inf
        if job.then is not None:
            job.then(result, error)

    def _keep_on(self, core: int | None) -> None:
        """While the event loop waits for the threads, pin them to its core, `core`. If `core` is
        None, let them run on all cores again.

        Waking a thread on another core takes several times as long as switching to a thread on the
        same core. Threads that a job starts would also be pinned, but warming up has already
        started all such threads.
        """
        if core == self._core:
            return
        self._core = core
        for thread in self._threads:
            if thread.native_id is not None:  # set since it was started
                with contextlib.suppress(OSError):  # it has ended, or pinning is not permitted
                    keep_on(core, thread.native_id)

    def _lose(self, number: int, job: Job | None, how: str, *, replaced: bool) -> None:
        thread = self._threads[number]
        _log.error("the thread %s %s", thread.name, how)
        if job is not None:
            message = (
                f"the server gave up: the thread of this request {how};"
                " the request may be the cause"
            )
            # The event loop calls `then` and logs its errors, so that the next thread is checked in
            # any case.
            job.loop.call_soon(self.settle, job, None, ThreadLostError(message))
        if replaced:
            self.lost += 1
            thread.lost = True
            self._replace(number)

    def _replace(self, number: int) -> None:
        """Start a new thread in place of a lost one. If the system allows no more threads, the next
        check tries again."""
        try:
            self._threads[number] = _Thread(self, number)
        except RuntimeError as error:
            _log.error("the thread %s is not replaced yet: %s", self._threads[number].name, error)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        now = monotonic()
        bounds = [job.bound_s for thread in self._threads if (job := thread.job) is not None]
        period_s = _period(min(bounds, default=self._bound_s))
        # If the whole process was suspended, its jobs were, too.
        self.look(min(now - self._looked, 2 * period_s))
        self._looked = now
        self._timer = loop.call_later(period_s, self._on_timer, loop) if self._open else None


def _period(bound_s: float) -> float:
    return min(_PERIOD_S, bound_s / _LOOKS)


def promised(post: Callable[[OnDone[R]], Withdrawable | None]) -> "asyncio.Future[R]":
    """Return a future of the outcome that `post` passes to its callback. Cancelling the future
    withdraws the work that `post` returned."""
    future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    def settle(result: R, error: Exception | None) -> None:
        if future.done():  # cancelled in this iteration of the event loop
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    work = post(settle)
    if work is not None:
        future.add_done_callback(lambda ended: work.withdraw() if ended.cancelled() else None)
    return future


def outcome_of(function: Callable[[Any], Any], argument: Any) -> tuple[Any, Exception | None]:
    """Return a function's result and None, or None and the exception that it raised. StrayError
    replaces StopIteration, and any exception that is not an Exception."""
    try:
        return function(argument), None
    except BaseException as error:  # noqa: BLE001  passed on to `then`
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            return None, error
        # The error must end neither the thread nor the event loop's task, and a future refuses
        # StopIteration.
        stray = StrayError(f"a job raised {type(error).__name__}, which no job may raise")
        stray.__cause__ = error
        return None, stray
