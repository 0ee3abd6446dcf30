"""Threads that call functions for an event loop.

What loop.run_in_executor does at less than half its cost: a callback, or one future instead of two.
With a model that takes a millisecond, handing a request to two threads and back is most of what a
server adds. The threads are daemons: one that is stuck in a device driver cannot keep the process.

A thread cannot be ended from outside. So a job that takes longer than it may is given up: whoever
awaits it gets ThreadLostError, what it comes to in the end goes nowhere, and another thread takes
the place of its own, which ends if the job ever does.
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
from math import inf
from queue import SimpleQueue
from time import monotonic
from typing import Any, TypeVar

from service.callbacks import call_safely
from service.engine.cores import keep_on, this_core
from service.errors import ThreadLostError

T = TypeVar("T")
R = TypeVar("R")

# Told what a function returned, or what it raised, in the event loop.
Then = Callable[[R, Exception | None], None]

# How often jobs with a bound are looked at, and that often at least within their bound.
_PERIOD_S = 0.5
_LOOKS = 8

_log = logging.getLogger("convoy")


class StrayError(Exception):
    """A job raised what is meant for a process or an event loop, not for whoever awaits the job."""


class Job:
    """A call that somebody wants made."""

    __slots__ = (
        *("argument", "bound_s", "function", "loop", "open", "spent_s", "then"),
        *("ended", "outcome"),
    )

    def __init__(
        self,
        function: Callable[[Any], Any],
        argument: Any,
        then: "Then[Any]",
        bound_s: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.function = function
        self.argument = argument
        self.then: Then[Any] | None = then  # None once nobody wants to hear of it
        self.bound_s = bound_s
        self.loop = loop
        self.spent_s = -1.0  # in its thread, as far as was seen; below 0: not seen there
        self.open = True  # whether the event loop has not heard of its end
        self.outcome: tuple[Any, Exception | None] = (None, None)  # once it has ended
        # What to release as it ends, while the event loop waits for that, and need not be called.
        self.ended: LockType | None = None

    def withdraw(self) -> None:
        """Nobody wants it any longer: before its turn it is never called, and `then` in no case."""
        self.then = None


class _Jobs:
    """Jobs in order; whoever waits for one begins with it at once.

    SimpleQueue wakes a thread while its caller holds the interpreter's lock, over which the thread
    falls asleep again, to be woken a second time. To write to a file the lock is let go first.
    """

    def __init__(self) -> None:
        self._jobs: deque[Job | None] = deque()
        self._count = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._count).atexit = False

    def put(self, job: Job | None) -> None:
        """Add one; None tells a thread to end."""
        self._jobs.append(job)
        os.eventfd_write(self._count, 1)

    def get(self) -> Job | None:
        """Wait for the next."""
        os.read(self._count, 8)  # takes 1 off, and unlike eventfd_read bears with signals
        return self._jobs.popleft()


class _Thread(threading.Thread):
    """One of the threads; what it is at is read by the event loop."""

    def __init__(self, name: str, jobs: "_Queue", settle: "_Settle", nice: int) -> None:
        super().__init__(name=name, daemon=True)
        self._jobs = jobs
        self._settle = settle
        self._nice = nice
        self.job: Job | None = None
        self.lost = False
        self.start()

    def run(self) -> None:
        """Do jobs until told to end."""
        if self._nice and sys.platform == "linux":  # elsewhere it is the whole process's
            thread = threading.get_native_id()
            nice = os.getpriority(os.PRIO_PROCESS, thread) + self._nice
            os.setpriority(os.PRIO_PROCESS, thread, nice)
        while not self.lost:
            self.job = job = self._jobs.get()
            if job is None:
                return
            wanted = job.then is not None
            job.outcome = _outcome(job.function, job.argument) if wanted else (None, None)
            ended = job.ended
            if ended is not None:
                ended.release()
            if job.ended is None:  # not waited for, or not any longer
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                    job.loop.call_soon_threadsafe(self._settle, job, *job.outcome)
            self.job = None
            del job  # an idle thread keeps nobody's picture


_Settle = Callable[[Job, Any, Exception | None], None]

_Queue = SimpleQueue[Job | None] | _Jobs


class Workers:
    """A fixed number of threads; jobs are started in the order in which they came.

    With none, whoever has a job does it at once: for jobs shorter than handing them over.
    A job may take `bound_s` seconds from when a thread begins with it. Used from one event loop.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        *,
        bound_s: float = inf,
        replaced: bool = True,
        nice: int = 0,
    ) -> None:
        """Where a stuck thread is not `replaced`, the jobs behind what it is at wait for it.

        `nice` is how much the process's other threads go before these, as nice(1) counts.
        """
        self._name = name
        self._nice = nice
        self._bound_s = bound_s
        self._replaced = replaced
        self._jobs: _Queue = _Jobs() if hasattr(os, "eventfd") else SimpleQueue()
        self._threads = [self._start(number) for number in range(threads)]
        self._open = 0  # jobs with a bound whose end was not heard of
        self._timer: asyncio.Handle | None = None
        self._looked = 0.0
        self._closed = False
        self._core: int | None = None  # that the threads are kept on
        self.lost = 0  # threads so far

    def post(
        self,
        function: Callable[[T], R],
        argument: T,
        then: Then[R],
        bound_s: float | None = None,
        patience_s: float = 0.0,
    ) -> Job | None:
        """Have `function(argument)` called, then `then` with what it returned, in the event loop.

        None: both are done already, there being no threads.
        What `function` raises is the second argument of `then`; for what is no Exception:
        StrayError from that. ThreadLostError: it took too long, or its thread died.
        """
        if not self._threads:
            then(*_outcome(function, argument))
            return None
        bound_s = self._bound_s if bound_s is None else bound_s
        loop = asyncio.get_running_loop()
        job = Job(function, argument, then, bound_s, loop)
        if bound_s < inf:
            self._open += 1
            if self._timer is None:
                self._looked = monotonic()
                self._timer = loop.call_later(self._period(bound_s), self._on_timer, loop)
        self._keep_on(this_core() if patience_s else None)
        if not patience_s:
            self._jobs.put(job)
            return job
        job.ended = ended = allocate_lock()
        ended.acquire()
        self._jobs.put(job)
        if not ended.acquire(timeout=patience_s):
            self._keep_on(None)
            job.ended = None
            if not ended.acquire(blocking=False):
                return job
        self._settle(job, *job.outcome)
        return None

    def run(
        self,
        function: Callable[[T], R],
        argument: T,
        bound_s: float | None = None,
        patience_s: float = 0.0,
    ) -> "asyncio.Future[R]":
        """As `post`, a future of it; cancelled before its turn, it is never called."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def settle(result: R, error: Exception | None) -> None:
            if future.done():  # cancelled, in this very turn
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        job = self.post(function, argument, settle, bound_s, patience_s)
        if job is not None:
            future.add_done_callback(lambda ended: job.withdraw() if ended.cancelled() else None)
        return future

    def close(self) -> None:
        """End every thread when it has no more to do; does not wait for it."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)

    def look(self, passed_s: float) -> None:
        """Give up the jobs that have taken too long now that so much more time has passed."""
        for number, thread in enumerate(self._threads):
            job = thread.job
            if not thread.is_alive():
                if self._closed and job is None:
                    continue  # it was told to end
                self._lose(number, job, "died", replaced=True)
            elif job is None or not job.open or job.bound_s == inf:
                continue
            elif job.spent_s < 0:
                job.spent_s = 0.0
            else:
                job.spent_s += passed_s
                if job.spent_s >= job.bound_s:
                    stuck = f"is stuck for {job.spent_s:.1f} s"
                    self._lose(number, job, stuck, replaced=self._replaced)

    def _start(self, number: int) -> _Thread:
        return _Thread(f"{self._name}-{number}", self._jobs, self._settle, self._nice)

    def _keep_on(self, core: int | None) -> None:
        """Have the threads run where the event loop does, while it waits for them; None: anywhere.

        To wake one on another core, and be woken by it, takes several times as long as to change
        from one thread to the other on the same. A thread that a job starts meanwhile would stay
        there, so what starts threads has done so before it is quick enough to be waited for.
        """
        if core == self._core:
            return
        self._core = core
        for thread in self._threads:
            if thread.native_id is not None:  # which it is, once it was started
                with contextlib.suppress(OSError):  # it ended, or is as quick as the system lets it
                    keep_on(core, thread.native_id)

    def _lose(self, number: int, job: Job | None, how: str, *, replaced: bool) -> None:
        thread = self._threads[number]
        _log.error("the thread %s %s", thread.name, how)
        if job is not None:
            message = f"this was given up: its thread {how}; the request may be at fault"
            self._settle(job, None, ThreadLostError(message))
        if replaced:
            self.lost += 1
            thread.lost = True
            self._threads[number] = self._start(number)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        now = monotonic()
        bounds = [job.bound_s for thread in self._threads if (job := thread.job) is not None]
        period_s = self._period(min(bounds, default=self._bound_s))
        # Where the whole process was stopped for a while, its jobs have not been running either.
        self.look(min(now - self._looked, 2 * period_s))
        self._looked = now
        self._timer = loop.call_later(period_s, self._on_timer, loop) if self._open else None

    def _settle(self, job: Job, result: Any, error: Exception | None) -> None:
        """A job has ended, or is given up: once."""
        if not job.open:
            return
        job.open = False
        self._open -= job.bound_s < inf
        if job.then is not None:
            call_safely(job.then, result, error)

    @staticmethod
    def _period(bound_s: float) -> float:
        return min(_PERIOD_S, bound_s / _LOOKS)


def _outcome(function: Callable[[Any], Any], argument: Any) -> tuple[Any, Exception | None]:
    """What a function returned, or raised."""
    try:
        return function(argument), None
    except (StopIteration, asyncio.CancelledError) as error:
        # These mean something to whoever awaits a future, and a future takes not even all.
        return None, _crash(error)
    except Exception as error:  # noqa: BLE001  whoever wants the result gets it
        return None, error
    except BaseException as error:  # noqa: BLE001  meant for a process, but it is a job's
        return None, _crash(error)


def _crash(error: BaseException) -> StrayError:
    crash = StrayError(f"{type(error).__name__} was raised where only errors are expected")
    crash.__cause__ = error
    return crash
