"""Lists the layers to measure, in whole sets of convolutions from the papers.

    vgg-e   Lavin & Gray 2015, table 3: the 3×3 layers of VGG network E
    cuconv  Jordà et al. 2021 (cuConv), section 4: every 1×1, 3×3 and 5×5 layer at stride 1 of
            AlexNet, GoogLeNet, ResNet-50, SqueezeNet 1.0 and VGG-19
    c3d     Lan et al. 2017, table 2: conv2 to conv5 of the v3d network

Every layer is padded so that it keeps its size, and is for one image.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kernels.problems.conv import ConvProblem, same_padded

BATCHES = (1, 2, 4, 8)
"""The values of N for which layers are measured."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a suite, which occurs `count` times in its network."""

    name: str
    problem: ConvProblem
    count: int = 1


def _square(label: str) -> Layer:
    """Return the layer that one of cuConv's labels names: H and W - R and S - K - C, without N."""
    size, kernel, k, c = map(int, label.split("-"))
    return Layer(label, same_padded((size, size), kernel, c, k))


# Depth, as the table calls it, is how often a layer occurs.
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

# Groups are left out, as in the paper; sizes are the paper's, where pooling windows may end outside
# the image: 56, 28, 14 and 7 in GoogLeNet. The paper counts 42 configurations of GoogLeNet: it has
# all but the six 1×1 layers that follow a pooling. Of ResNet-50 it counts 12, and names none but
# those with which the 16 here agree.
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
