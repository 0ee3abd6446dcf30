"""Measures the simulator's speed on one core: `python -m tests.cusim.selftest.speed`.

A thread-step is counted when a thread begins, or continues after a barrier or an operation of its
warp: it is the number of times that a thread is switched to.
"""

import numpy as np

from cusim.build import BUILDS, Build
from cusim.device import Order
from tests.cusim.selftest.launching import instantiation, opened

THREADS = 256
ROUNDS = 4000
REPEATS = 5
# Kernel → blocks, and multiply-accumulates of a warp's round.
KERNELS = {
    "barriers": (1, 0),
    "shuffles": (1, 0),
    "products_tf32": (1, 16 * 8 * 8),
    "products_f16": (1, 16 * 8 * 16),
    "independent": (ROUNDS, 0),
}


def measure(build: Build, order: Order, name: str) -> tuple[float, float]:
    """Return thread-steps and multiply-accumulates per second of CPU time, of the fastest
    launch."""
    blocks, macs = KERNELS[name]
    device = opened(build, order)
    stream, buffer = device.stream(), device.allocate(4 * THREADS * blocks)
    kernel = device.load(instantiation("speed.cu", name))
    rates = []
    for _ in range(REPEATS):
        arguments = (buffer.address, np.int32(ROUNDS))
        device.launch(kernel, (blocks, 1, 1), (THREADS, 1, 1), 0, arguments, stream)
        steps, begin = device.steps, device.cpu_seconds()
        stream.synchronize()
        rates.append((device.steps - steps) / (device.cpu_seconds() - begin))
    device.close()
    return max(rates), max(rates) / 32 * macs


def main() -> None:
    """Print a table with every build, order and kernel."""
    for build in BUILDS:
        for order in Order:
            for name in KERNELS:
                steps, macs = measure(build, order, name)
                products = f", {macs / 1e6:,.0f} M MAC/s" if macs else ""
                what = f"{build.name:6} {order.name.lower():9} {name:14}"
                print(f"{what} {steps / 1e6:7.1f} M thread-steps/s{products}")


if __name__ == "__main__":
    main()
