"""Lists every case of every kernel. The tests run these cases on each device, and compile the
kernels of the cases."""

from kernels.device.device import Instantiation
from kernels.operations.epilogue import variants
from tests.support.cases.attention import ATTENTION_CASES
from tests.support.cases.coalesced import COALESCED_CASES
from tests.support.cases.conv import CONV_CASES
from tests.support.cases.elementwise import ELEMENTWISE_CASES
from tests.support.cases.half import HALF_CASES
from tests.support.cases.integer import INTEGER_CASES
from tests.support.cases.jpeg import JPEG_CASES
from tests.support.cases.linear import LINEAR_CASES
from tests.support.cases.micro import MICRO_CASES
from tests.support.cases.product import PRODUCT_CASES
from tests.support.cases.quantize import QUANTIZE_CASES
from tests.support.cases.reductions import REDUCTION_CASES
from tests.support.cases.resize import RESIZE_CASES
from tests.support.cases.tensor_gemm import TENSOR_CASES, WARPGROUP_CASES
from tests.support.cases.tensor_patch import TENSOR_PATCH_CASES
from tests.support.cases.tensor_winograd import TENSOR_WINOGRAD_CASES
from tests.support.cases.tma_gemm import TMA_CASES
from tests.support.cases.windows import WINDOW_CASES
from tests.support.cases.winograd import WINOGRAD_CASES
from tests.support.cases.winograd_nonfused import NONFUSED_CASES
from tests.support.kernels.kernel_case import KernelCase

CASES: tuple[KernelCase, ...] = (
    *ELEMENTWISE_CASES,
    *WINDOW_CASES,
    *REDUCTION_CASES,
    *RESIZE_CASES,
    *JPEG_CASES,
    *CONV_CASES,
    *COALESCED_CASES,
    *TENSOR_CASES,
    *WARPGROUP_CASES,
    *TMA_CASES,
    *INTEGER_CASES,
    *QUANTIZE_CASES,
    *HALF_CASES,
    *LINEAR_CASES,
    *PRODUCT_CASES,
    *ATTENTION_CASES,
    *WINOGRAD_CASES,
    *TENSOR_PATCH_CASES,
    *TENSOR_WINOGRAD_CASES,
    *NONFUSED_CASES,
    *MICRO_CASES,
)

INSTANTIATIONS: tuple[Instantiation, ...] = tuple(
    dict.fromkeys(
        kernel
        for case in CASES
        for launch in case.launches
        for kernel in variants(launch.instantiation)
    )
)
"""The instantiations of all cases without repetitions, and the same instantiations for other
activations."""
