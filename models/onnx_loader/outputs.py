"""Removes the outputs of a model that cannot be its scores.

Outputs that are not float are removed. A ZipMap is replaced by its input. If the user names a value
inside the model, it becomes an output. If several outputs remain, `choose.py` finds the scores.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from models.errors import NotScoresError
from models.onnx_loader.limits.bounds import shortened
from models.scores import classes_of, set_key

_FLOATS = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16}
)
_LISTED = 8  # the most names in a message
_FOLLOWED = 64  # the most nodes that are followed back from an output


@dataclass(frozen=True, slots=True)
class Outputs:
    """Facts about a model's outputs, collected before the model is normalised."""

    listed: str  # all outputs with their shapes, for messages
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by output
    names: tuple[tuple[str, ...], ...] = ()  # lists of strings from which an output may be selected
    wanted: str | None = None  # the output that the user named as the scores
    features: tuple[str, ...] = ()  # the other outputs


def take_outputs(proto: ModelProto, wanted: str | None, beside: str | None = None) -> Outputs:
    """Remove the outputs of `proto` that cannot be scores, and return facts about all outputs.

    If `wanted` is given, only this value and the output `beside` remain. Raises NotScoresError if
    no output can be the scores.
    """
    graph = proto.graph
    writers = {name: node for node in graph.node for name in node.output}
    labels: dict[str, tuple[str, ...]] = {}
    strings: list[tuple[str, ...]] = []
    kept: dict[str, ValueInfoProto] = {}
    described, refused = [], []
    for output in graph.output:
        described.append(f'"{output.name}" {_described(output)}')
        zipped = _zipped(writers, output.name)
        if zipped is not None:
            inside, its_labels = zipped
            labels[inside] = its_labels
            if wanted in (None, output.name, inside):
                kept[inside] = _value_of(graph, inside)
                wanted = inside if wanted is not None else None
        elif output.type.tensor_type.elem_type in _FLOATS:
            kept.setdefault(output.name, output)
        else:
            refused.append(output.name)
            if output.type.tensor_type.elem_type == TensorProto.STRING:
                strings += _strings_behind(graph, writers, output.name)
    listed = ", ".join(described[:_LISTED]) + (", ..." if len(described) > _LISTED else "")
    floats = list(kept)
    if wanted is not None:
        if wanted not in kept and wanted in refused:
            raise NotScoresError(_no_scores(writers, [wanted], listed))
        if wanted not in kept:
            if wanted not in writers:
                raise NotScoresError(_unknown(wanted, [*kept, *refused], listed))
            kept[wanted] = _value_of(graph, wanted)
        kept = {wanted: kept[wanted]} | {name: kept[name] for name in kept if name == beside}
    if not kept:
        raise NotScoresError(_no_scores(writers, refused, listed))
    if list(kept) != [output.name for output in graph.output]:
        values = [_copied(value) for value in kept.values()]
        del graph.output[:]
        graph.output.extend(values)
    others = tuple(name for name in floats if name != wanted)
    return Outputs(listed, labels, tuple(strings), wanted, others)


def expose(proto: ModelProto, name: str) -> None:
    """Make the value `name` the model's only output.

    If the model has no value of this name, and only one output, it stays unchanged.
    """
    graph = proto.graph
    names = [output.name for output in graph.output]
    written = {output for node in graph.node for output in node.output}
    if names == [name] or (len(names) == 1 and name not in written):
        return
    found = [_copied(output) for output in graph.output if output.name == name]
    found = found or [_value_of(graph, name)]
    del graph.output[:]
    graph.output.extend(found)


def labels_of(outputs: Outputs, name: str, classes: int) -> tuple[str, ...]:
    """Return the labels in the model file for an output with `classes` scores.

    Return () unless exactly one list in the file has this number of labels.
    """
    found = {labels for labels in (outputs.labels.get(name, ()), *outputs.names) if labels}
    fitting = [labels for labels in found if len(labels) == classes_of(classes)]
    return fitting[0] if len(fitting) == 1 else ()


def _described(value: ValueInfoProto) -> str:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return "a sequence of maps" if kind == "sequence_type" else "no tensor"
    tensor = value.type.tensor_type
    name = TensorProto.DataType.Name(tensor.elem_type).lower()
    sizes = [
        str(dim.dim_value) if dim.dim_value > 0 else dim.dim_param or "?"
        for dim in tensor.shape.dim
    ]
    shape = "×".join(sizes) if tensor.HasField("shape") else "of an unknown shape"
    return f"{name} {shape}".strip()


def _copied(value: ValueInfoProto) -> ValueInfoProto:
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    return copy


def _value_of(graph: GraphProto, name: str) -> ValueInfoProto:
    """Return the declaration of a value inside the graph, with its type if it is known."""
    known = (value for value in (*graph.output, *graph.value_info) if value.name == name)
    return next(known, ValueInfoProto(name=name))


def _zipped(writers: Mapping[str, NodeProto], name: str) -> tuple[str, tuple[str, ...]] | None:
    """If a ZipMap computes an output, return the ZipMap's input and its labels. Otherwise, return
    None."""
    node = writers.get(name)
    if node is None or node.op_type != "ZipMap" or not node.input:
        return None
    for attribute in node.attribute:
        if attribute.name == "classlabels_strings":
            return node.input[0], tuple(_text(label) for label in attribute.strings)
        if attribute.name == "classlabels_int64s":
            numbers = list(attribute.ints)
            plain = numbers == list(range(len(numbers)))
            return node.input[0], () if plain else tuple(map(str, numbers))
    return node.input[0], ()


def _text(label: bytes) -> str:
    return label.decode("utf-8", "replace")


def _behind(writers: Mapping[str, NodeProto], name: str) -> Iterator[NodeProto]:
    """Yield the nodes from which a value is computed, the nearest first, up to a limit."""
    waiting, seen = [name], {name}
    for _ in range(_FOLLOWED):
        if not waiting:
            return
        node = writers.get(waiting.pop(0))
        if node is None:
            continue
        yield node
        waiting += [each for each in node.input if each not in seen]
        seen.update(node.input)


def _strings_behind(
    graph: GraphProto, writers: Mapping[str, NodeProto], name: str
) -> Iterator[tuple[str, ...]]:
    """Yield the lists of strings in the nodes that compute the output `name`. These may be
    labels."""
    tensors = {t.name: t for t in graph.initializer if t.data_type == TensorProto.STRING}
    for node in _behind(writers, name):
        for each in node.input:
            if each in tensors:
                yield tuple(map(_text, tensors[each].string_data))
        for attribute in node.attribute:
            if attribute.type == AttributeProto.STRINGS and attribute.name != "keys_strings":
                yield tuple(map(_text, attribute.strings))
            elif attribute.t.data_type == TensorProto.STRING:
                yield tuple(map(_text, attribute.t.string_data))


def _no_scores(writers: Mapping[str, NodeProto], names: Iterable[str], listed: str) -> str:
    for name in names:
        for node in _behind(writers, name):
            if node.op_type in ("ArgMax", "ArgMin", "TopK"):
                return (
                    f'its output "{name}" has class numbers selected by {node.op_type}, not one'
                    f" score per class. Export the model without {node.op_type}, or use its"
                    f" input: {set_key(node.input[0])}"
                )
        last = writers.get(name)
        if last is not None and last.op_type == "QuantizeLinear":
            return (
                f'its output "{name}" has 8-bit numbers. Export the model with float outputs, or'
                f" use the input of its last QuantizeLinear: {set_key(last.input[0])}"
            )
    return (
        f"none of its outputs has one float score per class: {listed}. Export the model with such"
        ' an output, or name a value inside the model: set scores = "NAME" in model.toml'
    )


def _unknown(wanted: str, names: list[str], listed: str) -> str:
    near = get_close_matches(wanted, names, n=1)
    meant = f'. Did you mean "{near[0]}"?' if near else ""
    return (
        f'scores = "{shortened(wanted)}": the model has no output and no value of that name; its'
        f" outputs are {listed}{meant}"
    )
