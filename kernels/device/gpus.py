"""Lists the properties of GPU architectures and products from NVIDIA's data sheets. No other file
lists these properties.

Planning, estimates and reports read this table. On a GPU, `CudaDevice` asks the driver instead,
where possible.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kernels.problems.precision import Precision


@dataclass(frozen=True, slots=True)
class Architecture:
    """Holds the properties that all GPUs of an architecture share."""

    lanes: int  # fp32 multiply-adds of a multiprocessor a clock
    half_rate: float  # dense products of halves with float sums, for each fp32 multiply-add
    shared_kb: int  # shared memory of a multiprocessor
    block_kb: int  # the most of it that a block may have
    multiprocessors: tuple[int, ...] = ()  # of its GPUs
    overlaps: bool = False  # whether dependent launches do (kernels/src/dependent.cuh)

    @property
    def block_bytes(self) -> int:
        """Return the largest shared memory of a block, in bytes."""
        return self.block_kb << 10

    def rate(self, precision: Precision) -> float:
        """Return the ratio of two peak rates of multiply-adds: the rate at `precision`, divided by
        the rate at fp32."""
        divisor = {
            Precision.INT8: 0.5,
            Precision.FP16: 1,
            Precision.TF32: 2,
            Precision.TF32X3: 6,
        }
        return 1.0 if precision is Precision.FP32 else self.half_rate / divisor[precision]


_THOR = Architecture(128, 32.0, 228, 227, (12, 20), overlaps=True)  # Jetson T4000; AGX Thor

# Some GeForces have half of the rate for halves. Shared memory is that of CUDA's cuda_occupancy.h.
ARCHITECTURES: Mapping[str, Architecture] = {
    "75": Architecture(64, 8.0, 64, 64, (40, 72)),  # T4; Quadro RTX 8000
    "80": Architecture(64, 16.0, 164, 163, (56, 108)),  # A30; A100
    "86": Architecture(128, 4.0, 100, 99, (60, 84)),  # A10 has 72; A16, A40
    "87": Architecture(128, 8.0, 164, 163, (8, 14, 16)),  # Jetson Orin: NX, AGX 32 GB and 64 GB
    "88": Architecture(128, 4.0, 100, 99, (60, 84)),  # no product is listed for it: as 86
    "89": Architecture(128, 4.0, 100, 99, (58, 128, 142)),  # L4; RTX 4090; L40
    "90a": Architecture(128, 16.0, 228, 227, (114, 132), overlaps=True),  # H100 PCIe; SXM, H200
    "100": Architecture(128, 32.0, 228, 227, (148,), overlaps=True),  # B200
    "101": _THOR,  # as CUDA 12 numbers it
    "103": Architecture(128, 32.0, 228, 227, (148, 152), overlaps=True),  # B300; GB300
    "107": Architecture(128, 32.0, 328, 227, (224,), overlaps=True),  # Rubin; rate, block: as 103
    "110": _THOR,
    "120": Architecture(128, 4.0, 100, 99, (170, 188), overlaps=True),  # RTX 5090; RTX PRO 6000
    "121": Architecture(128, 4.0, 100, 99, (48,), overlaps=True),  # GB10 (DGX Spark)
}
"""The architectures by the compiler's names. Plans depend on the multiprocessors and on a block's
shared memory, so kernels are compiled in advance for listed GPUs. Another GPU may need further
kernels, which its engine compiles at start."""

EXPONENTIALS = 16
"""The exponentials that a multiprocessor of each architecture computes per clock, in its special
function units (CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions")."""

OTHER = Architecture(128, 1.0, 0, 0)
"""The assumed properties of an architecture that is not listed, such as the simulator's."""


def architecture_of(name: str) -> Architecture:
    """Return an architecture by its name, or OTHER if the name is not listed."""
    return ARCHITECTURES.get(name, OTHER)


@dataclass(frozen=True, slots=True)
class Gpu:
    """Holds a product's peak rates of memory and of dense arithmetic.

    The fp32 rate does not use tensor cores. The tf32 rate is 0 if the tensor cores do not support
    TF32.
    """

    name: str
    architecture: str
    multiprocessors: int
    clock_mhz: int  # the highest
    tf32_tflops: float
    fp16_tflops: float
    gb_per_s: float
    l2_mb: int  # MiB of the second-level cache, as the device reports them

    @property
    def max_shared_bytes(self) -> int:
        """Return the largest shared memory of a block, in bytes."""
        return ARCHITECTURES[self.architecture].block_bytes

    @property
    def overlaps(self) -> bool:
        """Return whether a dependent launch may overlap with the previous launch."""
        return ARCHITECTURES[self.architecture].overlaps

    @property
    def clock_hz(self) -> float:
        """Return the highest clock of the multiprocessors, in Hz."""
        return 1e6 * self.clock_mhz

    @property
    def peak_flops(self) -> float:
        """Return the peak rate of fp32 operations, per second."""
        return 2 * ARCHITECTURES[self.architecture].lanes * self.multiprocessors * self.clock_hz

    @property
    def peak_bandwidth(self) -> float:
        """Return the peak bandwidth of memory, in bytes per second."""
        return 1e9 * self.gb_per_s

    def tflops(self, precision: Precision) -> float:
        """Return the peak TFLOPS. TF32X3 has a third of the rate of TF32. INT8 has twice the rate
        of FP16."""
        return {
            Precision.FP32: self.peak_flops / 1e12,
            Precision.TF32: self.tf32_tflops,
            Precision.TF32X3: self.tf32_tflops / 3,
            Precision.FP16: self.fp16_tflops,
            Precision.INT8: 2 * self.fp16_tflops,
        }[precision]


H200 = Gpu("H200 SXM", "90a", 132, 1980, 494, 989, 4800, 60)

GPUS: Mapping[str, Gpu] = {
    "t4": Gpu("T4", "75", 40, 1590, 0, 65, 320, 4),
    "a100": Gpu("A100 SXM 80 GB", "80", 108, 1410, 156, 312, 2039, 40),
    "l4": Gpu("L4", "89", 58, 2040, 60, 121, 300, 48),
    "h100": Gpu("H100 SXM", "90a", 132, 1980, 494, 989, 3350, 50),
    "h200": H200,
}
"""The products by their names in `convoy inspect --gpu`."""
