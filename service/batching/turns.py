"""Whose batch runs next, where several models share a device: start-time fair queueing.

Each model's finish tag is the service it has had over its weight, on a clock that all share. When
it wants the device it gets a start tag, its finish tag or the clock, whichever is later; the device
goes to the earliest start tag, and the clock to that tag (Goyal, Vin and Cheng 1996, section 2). So
while two models want it all the time, the seconds that each gets over its weight differ by at most
one batch of each over its weight; and whoever comes back from a pause has saved nothing up.
"""

from collections.abc import Callable


class Turns:
    """One device's turns. It waits for nobody and asks no clock; used from one event loop."""

    __slots__ = ("clock", "holder", "members", "waiting")

    def __init__(self) -> None:
        self.members = 0
        self.clock = 0.0  # seconds of service over weight
        self.holder: Turn | None = None
        self.waiting: list[Turn] = []

    def join(self, on_granted: Callable[[], None], weight: float = 1.0) -> "Turn":
        """A new model's turn; `on_granted` is called when one that had to wait is granted."""
        if not weight > 0:
            raise ValueError(f"a weight must be above 0, not {weight}")
        self.members += 1
        return Turn(self, on_granted, weight)


class Turn:
    """One model's way to the device: `take` until it may, run, `spent`, and so on; or `let_go`."""

    __slots__ = ("_finish", "_on_granted", "_start", "_turns", "_used", "until", "weight")

    def __init__(self, turns: Turns, on_granted: Callable[[], None], weight: float) -> None:
        self._turns = turns
        self._on_granted = on_granted
        self.weight = weight
        self._start = self._finish = 0.0
        self._used = False  # whether what it was granted is spent
        self.until = 0.0  # clock seconds when its batch should be done

    @property
    def alone(self) -> bool:
        """Whether nobody else ever wants the device, so that it may run without asking."""
        return self._turns.members == 1

    @property
    def busy_until(self) -> float | None:
        """When the batch of another that holds the device should be done, if one does."""
        holder = self._turns.holder
        return None if holder is None or holder is self else holder.until

    @property
    def share(self) -> float:
        """What part of the device is its own while those who want it now go on wanting it."""
        holder, others = self._turns.holder, self._turns.waiting
        if not others and (holder is None or holder is self):
            return 1.0
        active = {id(turn): turn.weight for turn in others}
        for turn in (self, holder):
            if turn is not None:
                active[id(turn)] = turn.weight
        return self.weight / sum(active.values())

    def take(self) -> bool:
        """Whether it may run a batch now; if not, it is called back, and asks again."""
        turns = self._turns
        if turns.holder is self:
            if not self._used:
                return True
            self._start = self._finish
            if all(self._start < other._start for other in turns.waiting):
                turns.clock, self._used = self._start, False
                return True
            turns.waiting.append(self)
            self._grant()
        elif turns.holder is None:
            turns.clock = self._start = max(turns.clock, self._finish)
            turns.holder, self._used = self, False
            return True
        elif self not in turns.waiting:
            self._start = max(turns.clock, self._finish)
            turns.waiting.append(self)
        return False

    def spent(self, seconds: float) -> None:
        """Account for a batch that has run."""
        self._finish = self._start + seconds / self.weight
        self._used = True

    def let_go(self) -> None:
        """Want the device no longer, whether it had it, waited for it, or neither."""
        if self._turns.holder is self:
            self._grant()
        elif self in self._turns.waiting:
            self._turns.waiting.remove(self)

    def _grant(self) -> None:
        """Hand the device to the earliest start tag; of equals, to who asked first."""
        turns = self._turns
        turns.holder = None
        if turns.waiting:
            turn = min(turns.waiting, key=lambda each: each._start)
            turns.waiting.remove(turn)
            turns.holder, turns.clock, turn._used = turn, turn._start, False
            turn._on_granted()
