"""Every case of every kernel: what all devices run, and what the cubin gate compiles."""

from kernels.device.device import Instantiation
from tests.kernels.cases_coalesced import COALESCED_CASES
from tests.kernels.cases_conv import CONV_CASES
from tests.kernels.cases_elementwise import ELEMENTWISE_CASES
from tests.kernels.cases_linear import LINEAR_CASES
from tests.kernels.cases_windows import WINDOW_CASES
from tests.kernels.cases_winograd import WINOGRAD_CASES
from tests.kernels.cases_winograd_nonfused import NONFUSED_CASES
from tests.kernels.kernel_case import KernelCase

CASES: tuple[KernelCase, ...] = (
    *ELEMENTWISE_CASES,
    *WINDOW_CASES,
    *CONV_CASES,
    *COALESCED_CASES,
    *LINEAR_CASES,
    *WINOGRAD_CASES,
    *NONFUSED_CASES,
)

INSTANTIATIONS: tuple[Instantiation, ...] = tuple(
    dict.fromkeys(launch.instantiation for case in CASES for launch in case.launches)
)
"""In the order of the cases, each once."""
