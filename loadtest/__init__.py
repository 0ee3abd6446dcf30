"""`convoy loadtest`: what a server answers under load, as its clients see it.

    schedule ── when to send        pictures ── what to send
        │                               │
      drive ──── client ── HTTP ── a running server
        │           └ answers: good, or wrong in which way
      journal ── summary ── report: table, JSON; plot
        └ sweep: the highest rate that keeps a bound

Latency counts from the moment at which a request was to be sent, so a server that stalls is seen
by every request that the stall holds up, not by the one that happened to be under way (Tene's
coordinated omission).
"""
