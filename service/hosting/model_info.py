"""Defines the descriptions of models, both of served models and of models that could not be
opened."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from models import Absent, ChannelOrder, Inner, Layout, Maps, OutputKind, Serving

_AS_SET = Serving()
_UNSOUGHT = Absent("none was looked for")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Describes a model, without its weights."""

    name: str
    version: str  # digits
    image_shape: tuple[int, ...]  # H×W×C, the engine's input; of clips D×H×W×C
    scores: str  # the output's name in the model
    output: OutputKind
    labels: Sequence[str]  # empty: clients see class indices alone
    channels: ChannelOrder = ChannelOrder.RGB  # the engine's; clients send RGB, or grey
    tensor: str = ""  # the name of the model's own input; empty: clients cannot send that
    tensor_shape: tuple[int, ...] = ()  # of one image in that input
    layout: Layout = Layout.NCHW  # of its axes
    tensor_type: str = "FP32"  # or FP16, or UINT8: what the file's input holds, in V2's words
    guess: str = ""  # the preset, where nothing chose it
    warning: str = ""  # why its answers are probably wrong
    origin: str = ""  # one line: which file states which facts
    serving: Serving = _AS_SET
    embedding: Inner | Absent = _UNSOUGHT
    maps: Maps | Absent = _UNSOUGHT
    inner: Collection[Inner] = ()  # values inside the network that may be asked for
    meaning: str = ""  # one line: which output has the scores, what they are, and why
    is_multi_label: bool = False  # an image may have several labels, or none
    of_clips: bool = field(init=False)  # it takes clips, D×H×W×C

    def __post_init__(self) -> None:
        object.__setattr__(self, "of_clips", len(self.image_shape) == 4)


@dataclass(frozen=True, slots=True)
class FailedModel:
    """Holds the name of a model that could not be opened, and the reason."""

    name: str
    version: str
    error: str
