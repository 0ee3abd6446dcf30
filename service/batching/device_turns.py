"""Decides which model may run next on a shared device, by start-time fair queueing.

All models share one virtual clock. A model's service is the time for which it has used the device.
A model's finish tag is its service divided by its weight. A model that wants the device gets a
start tag: its finish tag or the clock, whichever is later. The model with the earliest start tag
gets the device, and the clock advances to that tag (Goyal, Vin and Cheng 1996, section 2).

- While two models want the device all the time, they get service in proportion to their weights.
  Their finish tags differ by at most b₁/w₁ + b₂/w₂, where b is the time of a model's longest batch
  and w is the model's weight.
- A model that pauses does not get more of the device afterwards.
"""

from collections.abc import Callable


class DeviceTurns:
    """Shares one device among several models, of which only one uses it at a time. Not thread-safe:
    use it from one event loop."""

    def __init__(self) -> None:
        self.members = 0
        self.clock = 0.0  # seconds of service over weight
        self.holder: DeviceTurn | None = None
        self.waiting: list[DeviceTurn] = []

    def join(self, on_granted: Callable[[], None], weight: float = 1.0) -> "DeviceTurn":
        """Add a model, and return its `DeviceTurn`. If the model has to wait for the device,
        `on_granted` is called when the model gets it."""
        if not weight > 0:
            raise ValueError(f"the weight is {weight}; it must be above 0")
        self.members += 1
        return DeviceTurn(self, on_granted, weight)


class DeviceTurn:
    """Lets one model use the device. The model calls `take` until it returns True, runs a batch,
    and calls `spent`. It calls `let_go` when it has no further batch to run."""

    def __init__(self, turns: DeviceTurns, on_granted: Callable[[], None], weight: float) -> None:
        self._turns = turns
        self._on_granted = on_granted
        self.weight = weight
        self._start = self._finish = 0.0
        self._used = False  # whether the granted batch has run
        self._member = True
        self.waits = False  # for the device
        self.until = 0.0  # clock seconds when its batch should be done

    @property
    def alone(self) -> bool:
        """Return whether no other model uses the device. If so, `take` need not be called."""
        return self._turns.members == 1

    @property
    def busy_until(self) -> float | None:
        """Return the time at which another model's batch should end, in clock seconds. Return None
        if no other model has the device."""
        holder = self._turns.holder
        return None if holder is None or holder is self else holder.until

    @property
    def share(self) -> float:
        """Return the fraction of the device's time that the model would get if the models that use
        the device now used it all the time."""
        holder, others = self._turns.holder, self._turns.waiting
        if not others and (holder is None or holder is self):
            return 1.0
        active = {id(turn): turn.weight for turn in (*others, self, holder) if turn is not None}
        return self.weight / sum(active.values())

    def take(self) -> bool:
        """Return whether the model may run a batch now. If not, `on_granted` is called once it
        may."""
        turns = self._turns
        if turns.holder is self:
            if not self._used:
                return True
            self._start = self._finish
            if all(self._start < other._start for other in turns.waiting):
                turns.clock, self._used = self._start, False
                return True
            turns.waiting.append(self)
            self.waits = True
            self._grant()
        elif turns.holder is None:
            turns.clock = self._start = max(turns.clock, self._finish)
            turns.holder, self._used = self, False
            return True
        elif self not in turns.waiting:
            self._start = max(turns.clock, self._finish)
            turns.waiting.append(self)
            self.waits = True
        return False

    def spent(self, seconds: float) -> None:
        """Add the seconds that a batch took to the model's service."""
        self._finish = self._start + seconds / self.weight
        self._used = True

    def let_go(self) -> None:
        """Give the device back, or stop waiting for it."""
        if self._turns.holder is self:
            self._grant()
        elif self in self._turns.waiting:
            self._turns.waiting.remove(self)
            self.waits = False

    def leave(self) -> None:
        """Give the device back for good. Later calls do nothing."""
        turns = self._turns
        self.let_go()
        turns.members -= self._member
        self._member = False
        if turns.members == 1:  # alone, it never calls `take`, and would never give the device back
            turns.holder = None

    def _grant(self) -> None:
        """Give the device to the waiting model with the earliest start tag. Among equal tags, the
        model that has waited longest is first."""
        turns = self._turns
        turns.holder = None
        if turns.waiting:
            turn = min(turns.waiting, key=lambda waiting: waiting._start)
            turns.waiting.remove(turn)
            turn.waits = False
            turns.holder, turns.clock, turn._used = turn, turn._start, False
            turn._on_granted()
