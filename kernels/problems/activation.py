"""Lists the elementwise activations. A kernel may apply an activation in its epilogue."""

from dataclasses import dataclass
from enum import Enum, unique


@unique
class ActivationKind(Enum):
    """Names an activation function. Its formula may use `a` and `b`, the parameters of
    `Activation`."""

    RELU = "Relu"  # max(x, 0)
    CLIP = "Clip"  # min(max(x, a), b)
    LEAKY_RELU = "LeakyRelu"  # x if x >= 0 else a * x
    SIGMOID = "Sigmoid"  # 1 / (1 + exp(-x))
    HARD_SIGMOID = "HardSigmoid"  # min(max(a * x + b, 0), 1)
    HARD_SWISH = "HardSwish"  # x * min(max(x / 6 + 1/2, 0), 1)
    SILU = "SiLU"  # x / (1 + exp(-x)); "Swish" in ONNX
    TANH = "Tanh"
    ERF = "Erf"
    GELU = "Gelu"  # x / 2 * (1 + erf(x / sqrt(2)))
    GELU_TANH = "GeluTanh"  # x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
    ELU = "Elu"  # b * x if x > 0 else a * (exp(x) - 1); ONNX's Selu has b != 1
    SOFTPLUS = "Softplus"  # log(1 + exp(x))
    MISH = "Mish"  # x * tanh(log(1 + exp(x)))
    SQRT = "Sqrt"


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation with its parameters. A parameter has no effect if the kind's formula does not
    contain it."""

    kind: ActivationKind
    a: float = 0.0
    b: float = 0.0

    def __str__(self) -> str:
        name: str = self.kind.value
        if self.kind in (ActivationKind.CLIP, ActivationKind.HARD_SIGMOID, ActivationKind.ELU):
            return f"{name}({self.a:g}, {self.b:g})"
        return f"{name}({self.a:g})" if self.kind is ActivationKind.LEAKY_RELU else name


RELU = Activation(ActivationKind.RELU)
