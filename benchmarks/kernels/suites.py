"""Lists the convolution layers to measure. A suite contains all layers that a paper measures.

    vgg-e   Lavin & Gray 2015, table 3: the 3×3 layers of VGG network E
    cuconv  Jordà et al. 2021 (cuConv), section 4: every 1×1, 3×3 and 5×5 layer at stride 1 of
            AlexNet, GoogLeNet, ResNet-50, SqueezeNet 1.0 and VGG-19
    c3d     Lan et al. 2017, table 2: conv2 to conv5 of the v3d network

Every layer is for one image, and is padded so that output and input have the same size. MEASURED
contains these suites, and vgg-e in fp16 (Lavin & Gray, table 6). NAMED lists the configurations
whose times the papers print.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernels.problems.conv import ConvProblem, same_padded
from kernels.problems.precision import Precision

BATCHES = (1, 2, 4, 8)
"""The values of N in a server, for which all layers are measured."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a suite, which occurs `count` times in its network."""

    name: str
    problem: ConvProblem
    count: int = 1


def _square(label: str) -> Layer:
    """Return the layer for a label of the cuConv paper. For example, "7-1-32-832" has H = W = 7, R
    = S = 1, K = 32 and C = 832."""
    size, kernel, k, c = map(int, label.split("-"))
    return Layer(label, same_padded((size, size), kernel, c, k))


# The first number of a row is the table's "depth", which is how often the layer occurs.
VGG_E = tuple(
    Layer(name, same_padded((size, size), 3, c, k), depth)
    for name, depth, c, size, k in (
        ("conv 1.1", 1, 3, 224, 64),
        ("conv 1.2", 1, 64, 224, 64),
        ("conv 2.1", 1, 64, 112, 128),
        ("conv 2.2", 1, 128, 112, 128),
        ("conv 3.1", 1, 128, 56, 256),
        ("conv 3.2", 3, 256, 56, 256),
        ("conv 4.1", 1, 256, 28, 512),
        ("conv 4.2", 3, 512, 28, 512),
        ("conv 5", 4, 512, 14, 512),
    )
)

# As in the paper, groups are ignored. The sizes are the paper's, whose pooling windows may end
# outside the image: 56, 28, 14 and 7 in GoogLeNet. The paper counts 42 configurations of GoogLeNet,
# because it leaves out the six 1×1 layers that follow a pooling. It counts 12 configurations of
# ResNet-50; those that it names are among the 16 here.
_CUCONV_LABELS = {
    "AlexNet": "27-5-256-96 13-3-384-256 13-3-384-384 13-3-256-384",
    "GoogLeNet": """
        56-1-64-64   56-3-192-64
        28-1-64-192  28-1-96-192  28-3-128-96  28-1-16-192 28-5-32-16  28-1-32-192
        28-1-128-256 28-3-192-128 28-1-32-256  28-5-96-32  28-1-64-256
        14-1-192-480 14-1-96-480  14-3-208-96  14-1-16-480 14-5-48-16  14-1-64-480
        14-1-160-512 14-1-112-512 14-3-224-112 14-1-24-512 14-5-64-24  14-1-64-512
        14-1-128-512 14-3-256-128
        14-1-144-512 14-3-288-144 14-1-32-512  14-5-64-32
        14-1-256-528 14-1-160-528 14-3-320-160 14-1-32-528 14-5-128-32 14-1-128-528
        7-1-256-832  7-1-160-832  7-3-320-160  7-1-32-832  7-5-128-32  7-1-128-832
        7-1-384-832  7-1-192-832  7-3-384-192  7-1-48-832  7-5-128-48
    """,
    "ResNet-50": """
        56-1-64-64    56-3-64-64   56-1-256-64  56-1-64-256  56-1-128-256
        28-1-512-128  28-1-128-512 28-3-128-128 28-1-256-512
        14-1-1024-256 14-1-256-1024 14-3-256-256 14-1-512-1024
        7-1-2048-512  7-1-512-2048 7-3-512-512
    """,
    "SqueezeNet": """
        54-1-16-96   54-1-64-16  54-3-64-16  54-1-16-128
        54-1-32-128  54-1-128-32 54-3-128-32
        27-1-32-256  27-1-128-32 27-3-128-32
        27-1-48-256  27-1-192-48 27-3-192-48 27-1-48-384
        27-1-64-384  27-1-256-64 27-3-256-64
        13-1-64-512  13-1-256-64 13-3-256-64 13-1-1000-512
    """,
    "VGG-19": """
        224-3-64-3   224-3-64-64   112-3-128-64 112-3-128-128 56-3-256-128 56-3-256-256
        28-3-512-256 28-3-512-512  14-3-512-512
    """,
}

CUCONV_NETWORKS: Mapping[str, tuple[str, ...]] = {
    network: tuple(labels.split()) for network, labels in _CUCONV_LABELS.items()
}

CUCONV = tuple(
    _square(label)
    for label in dict.fromkeys(label for labels in CUCONV_NETWORKS.values() for label in labels)
)

C3D = tuple(
    Layer(name, same_padded(size, 3, c, k))
    for name, c, size, k in (
        ("conv2", 32, (16, 56, 56), 64),
        ("conv3", 64, (8, 28, 28), 256),
        ("conv4", 256, (4, 14, 14), 256),
        ("conv5", 256, (2, 7, 7), 256),
    )
)

SUITES: Mapping[str, tuple[Layer, ...]] = {"vgg-e": VGG_E, "cuconv": CUCONV, "c3d": C3D}

MEASURED: Mapping[str, tuple[Layer, ...]] = {
    **SUITES,
    "vgg-e fp16": tuple(
        replace(layer, problem=replace(layer.problem, precision=Precision.FP16)) for layer in VGG_E
    ),
}
"""The suites that are measured on a GPU."""

PAPERS_BATCHES: Mapping[str, tuple[int, ...]] = {
    "vgg-e": (1, 2, 4, 8, 16, 32, 64),
    "vgg-e fp16": (1, 2, 4, 8, 16, 32, 64),
    "cuconv": (1, 8, 16, 32, 64, 128, 256),
    "c3d": (32,),
}
"""The values of N for which the papers measured a suite."""


def batches_of(suite: str) -> tuple[int, ...]:
    """Return every N for which a suite is measured: the N of the papers' tables, and BATCHES."""
    return tuple(sorted({*PAPERS_BATCHES[suite], *BATCHES}))


@dataclass(frozen=True, slots=True)
class Named:
    """A configuration for which a paper prints a time or a speed-up."""

    where: str
    suite: str
    name: str  # of the layer
    n: int
    speedup: float  # of the paper's kernels over the fastest kernels of cuDNN
    took: str  # the times of the paper's kernels and of cuDNN

    @property
    def layer(self) -> Layer:
        """Return the layer, for one image."""
        return next(layer for layer in MEASURED[self.suite] if layer.name == self.name)


def _timed(where: str, name: str, n: int, us: float, best_us: float) -> Named:
    return Named(where, "cuconv", name, n, best_us / us, f"{us:g} and {best_us:g} µs")


def _by_rate(name: str, rate: float, best: float, speedup: float) -> Named:
    """Return a configuration for a row of Lan's table 3, which counts a multiplication and its
    addition as one operation."""
    took = f"{rate:g} and {best:g} TFLOPS"
    return Named("Lan et al., table 3", "c3d", name, 32, speedup, took)


NAMED = (
    Named("cuConv, section 4.1", "cuconv", "7-1-32-832", 1, 2.29, "the largest speed-up"),
    _timed("cuConv, table 3, A", "7-1-256-832", 1, 58.56, 107.29),
    _timed("cuConv, table 3, B", "14-1-1024-256", 1, 73.86, 45.23),
    _timed("cuConv, table 3, C", "27-1-256-64", 1, 22.53, 19.20),
    _timed("cuConv, table 4, A", "7-3-384-192", 1, 57.79, 105.63),
    _timed("cuConv, table 4, B", "13-3-384-384", 1, 466.68, 232.35),
    _timed("cuConv, table 5, A", "7-5-128-48", 1, 22.50, 74.80),
    _timed("cuConv, table 5, B", "7-5-128-48", 8, 116.60, 76.58),
    _by_rate("conv2", 1.28, 1.21, 1.05),
    _by_rate("conv3", 3.31, 2.38, 1.39),
    _by_rate("conv4", 4.72, 2.4, 1.96),
    _by_rate("conv5", 2.1, 1.46, 1.44),
)
"""The configurations in the papers' order. cuConv measured on a V100 with cuDNN 7.1, and Lan et al.
on a GTX 1080."""
