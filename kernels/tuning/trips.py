"""How often the inner loops of a kernel run, where machine code alone does not say."""

from collections.abc import Mapping
from math import ceil, sqrt
from typing import NamedTuple

from kernels.device.device import Instantiation


class Trips(NamedTuple):
    """Trip counts of inner loops bounded by template arguments, by an opcode unique to the loop."""

    loop: Mapping[str, int]  # in a turn
    finish: Mapping[str, int]
    data_warps: int = 0
    products: int = 0  # of a thread in a chunk


def trips_of(instantiation: Instantiation, threads: int) -> Trips:
    """Of winograd.cu, coalesced.cu and implicit_gemm.cu, which multiplies 256 products a turn.

    Of tensor_patch.cu as for 64 channels of a 3x3 window, whose patch is square. Other kernels'
    depend on the problem.
    """
    template = {name: each for name, each in instantiation.arguments if isinstance(each, int)}
    if instantiation.kernel == "conv_tensor_patch":
        read = (sqrt(template["bm"]) + 2) ** 2
        return Trips({"HMMA": 9, "STS": ceil(8 * read / threads)}, {})
    if "taps_r" in template:
        step = 4 * 32 // template["filter_lanes"]
        return Trips({"FFMA": template["taps_r"] * (template["chunk"] // step)}, {})
    if "data_warps" not in template:
        return Trips(
            {"FFMA": template["bk"] * template["tm"] * template["tn"] // 256}
            if "tm" in template
            else {},
            {},
        )
    bm, bn, bc, tm, tn, data_warps = (
        template[name] for name in ("bm", "bn", "bc", "tm", "tn", "data_warps")
    )
    apart = (bm // tm) * (bn // tn) // (bn // 4)
    items = bm // data_warps * bc // 32  # of a data warp's lane; or two at once
    return Trips(
        {"STS": items, "STS.64": items // 2, "LDGSTS": bc // apart},
        {"STS": -(-bm * bn // threads)},
        data_warps,
        tm * tn * bc,
    )
