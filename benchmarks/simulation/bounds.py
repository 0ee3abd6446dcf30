"""Computes the best mean latency, throughput and goodput that any scheduler of one engine can
reach.

Poisson arrivals and closed loops are semi-Markov decision processes. In each state there are
several actions: the engine runs a batch of some size, or waits for the next event. An action takes
some time, answers some items, and leads to a random next state. Policy iteration (Howard 1960)
finds the policy with the best average in 3 to 10 rounds, each of which solves one linear system.
Goodput is the number of answers in time. Its bound is the goodput of a scheduler that knows all
arrivals in advance. In a closed loop, the mean latency is (clients / throughput) - think time. So
the highest throughput also gives the lowest mean latency.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import comb, exp, inf

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DEPTH = 96
"""The largest number of waiting items in a state. Larger numbers are treated as this number."""

_BINS = 8  # of a uniform think time; arrivals are seen at the end of a bin

# The probability with which every action leads to the first state. Without it, some policies would
# have groups of states that never reach each other, and so no common average.
_LEAK = 1e-7


class Process:
    """A Markov decision process. Each state has actions, and each action has a reward, a time and
    next states."""

    def __init__(self, states: int, actions: int) -> None:
        """Create a decision process with this number of states and without any actions. Call
        `allow` to add actions."""
        self.rewards = np.full((states, actions), -inf)
        self.seconds = np.ones((states, actions))
        self.moves = np.zeros((states, actions, states))

    def allow(self, state: int, action: int, reward: float, seconds: float, moves: Floats) -> None:
        """Add an action to a state. `moves` has the probability of each next state."""
        self.rewards[state, action], self.seconds[state, action] = reward, seconds
        self.moves[state, action] = (1 - _LEAK) * moves
        self.moves[state, action, 0] += _LEAK

    def best(self) -> tuple[float, NDArray[np.int64]]:
        """Return the highest possible long-run reward per second, and the best action in each
        state."""
        every = np.arange(len(self.rewards))
        policy = self.rewards.argmax(axis=1)
        while True:
            # The unknowns are the values of the states relative to the first state. In place of the
            # first state's value, the average is solved for.
            system = np.eye(len(every)) - self.moves[every, policy]
            system[:, 0] = self.seconds[every, policy]
            values = np.linalg.solve(system, self.rewards[every, policy])
            average, values[0] = float(values[0]), 0.0
            gains = self.rewards - average * self.seconds + self.moves @ values
            now = gains[every, policy]
            better = gains.max(axis=1) > now + 1e-9 * np.abs(now).max()
            if not better.any():
                return average, policy
            policy = np.where(better, gains.argmax(axis=1), policy)


@lru_cache(maxsize=256)
def poisson(seconds: tuple[float, ...], rate: float) -> tuple[float, tuple[int, ...]]:
    """Return the lowest possible mean latency for Poisson arrivals, in seconds, and the best batch
    size for each number of waiting items, 0 to DEPTH. A batch size of 0 means to wait."""
    process = Process(DEPTH + 1, len(seconds) + 1)
    for waiting in range(DEPTH + 1):
        if waiting < DEPTH:
            moves = np.zeros(DEPTH + 1)
            moves[waiting + 1] = 1.0
            process.allow(waiting, 0, -waiting / rate, 1 / rate, moves)
        for size, took in enumerate(seconds[:waiting], 1):
            # The sum of the seconds that items spend inside: waiting items the whole time, arriving
            # items half of it on average.
            inside = waiting * took + rate * took * took / 2
            moves = np.zeros(DEPTH + 1)
            left = waiting - size
            moves[left:] = _arrivals(rate * took)[: DEPTH + 1 - left]
            moves[-1] += 1 - moves.sum()
            process.allow(waiting, size, -inside, took, moves)
    average, policy = process.best()
    return -average / rate, tuple(int(size) for size in policy)


def closed_random(seconds: Sequence[float], clients: int, think_s: float) -> float:
    """Return the highest possible throughput, in answers per second, for clients with exponential
    think times. `think_s` is the mean think time. The state of the decision process is the number
    of waiting clients."""
    process = Process(clients + 1, len(seconds) + 1)
    for waiting in range(clients + 1):
        thinking = clients - waiting
        if thinking:
            moves = np.zeros(clients + 1)
            moves[waiting + 1] = 1.0
            process.allow(waiting, 0, 0.0, think_s / thinking, moves)
        for size, took in enumerate(seconds[:waiting], 1):
            moves = np.zeros(clients + 1)
            left = waiting - size
            moves[left : left + thinking + 1] = _binomial(thinking, 1 - exp(-took / think_s))
            process.allow(waiting, size, size, took, moves)
    return process.best()[0]


def closed_steady(seconds: Sequence[float], clients: int, least_s: float, most_s: float) -> float:
    """Return the highest possible throughput, in answers per second, for clients with uniform think
    times below L(1), the time of a batch of one.

    Every think time is shorter than any batch, so all clients outside a batch are waiting when it
    ends. The state of the decision process has three numbers: how many clients the last batch
    answered, how many of them have sent again, and for how many intervals of think time the engine
    has waited.
    """
    assert most_s < seconds[0]
    most = min(len(seconds), clients)
    keys = [
        (answered, back, part)
        for answered in range(1, most + 1)
        for part in range(_BINS + 1)
        for back in range(answered + 1)
        if part < _BINS or back == answered  # after the last bin, all clients have sent again
    ]
    number = {key: state for state, key in enumerate(keys)}
    process = Process(len(keys), most + 1)
    for state, (answered, back, part) in enumerate(keys):
        if part < _BINS and back < answered:
            moves = np.zeros(len(keys))
            for more, share in enumerate(_binomial(answered - back, 1 / (_BINS - part))):
                if share:
                    moves[number[answered, back + more, part + 1]] = share
            width = (most_s - least_s) / _BINS
            process.allow(state, 0, 0.0, width if part else least_s + width, moves)
        for size in range(1, min(most, clients - answered + back) + 1):
            moves = np.zeros(len(keys))
            moves[number[size, 0, 0]] = 1.0
            process.allow(state, size, size, seconds[size - 1], moves)
    return process.best()[0]


def clairvoyant(
    arrivals: Sequence[float], timeout_s: float, seconds: Sequence[float], begin: float = -inf
) -> int:
    """Return how many arrivals a scheduler can answer within `timeout_s` if it knows all arrivals
    in advance. The engine is free from `begin` on. Since all timeouts are equal, some optimal
    schedule serves the arrivals in order. The function processes one arrival after another.
    `free[d]` is the earliest time at which the engine is free if `d` of the arrivals so far are
    dropped and all others are answered."""
    count = len(arrivals)
    free = np.full(count + 1, inf)
    free[0] = begin
    past = [free]  # `free` after each of the last arrivals, as many as a batch may have
    for newest, arrival in enumerate(arrivals):
        free = np.full(count + 1, inf)
        free[1:] = past[-1][:-1]  # the newest arrival is dropped
        for size, took in enumerate(seconds[: newest + 1], 1):
            ends = np.maximum(past[-size], arrival) + took
            ends[ends > arrivals[newest - size + 1] + timeout_s] = inf
            np.minimum(free, ends, out=free)
        past = [*past, free][-len(seconds) :]
    return count - int(np.argmax(past[-1] < inf))


def _arrivals(mean: float) -> Floats:
    """Return the probabilities of 0, 1, … DEPTH Poisson arrivals if `mean` arrivals are
    expected."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, DEPTH + 1)))])
    return np.asarray(np.exp(np.arange(DEPTH + 1) * np.log(mean) - mean - logs))


def _binomial(n: int, share: float) -> Floats:
    return np.array([comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)])
