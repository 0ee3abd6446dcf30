"""Rewrites a loaded graph to an equivalent graph with fewer, larger nodes.

Each rewrite rule has a file of its own. The file states the rule's equation and the cases in which
the rule does not apply.
"""

from dataclasses import dataclass
from functools import cached_property

from models.graph import Graph, Node
from models.rewrite.activation_before_concat import activation_before_concat
from models.rewrite.canonical_scale_shift import canonical_scale_shift
from models.rewrite.channel_shuffle import channel_shuffle
from models.rewrite.concat_in_place import concat_in_place
from models.rewrite.drop_expand import drop_expand
from models.rewrite.drop_identity import drop_identity
from models.rewrite.editor import Change, Editor
from models.rewrite.flatten_channels_last import flatten_channels_last
from models.rewrite.fold_bias import fold_bias
from models.rewrite.fold_into_normalise import fold_into_normalise
from models.rewrite.fold_pad import fold_pad
from models.rewrite.fold_scale_shift import fold_scale_shift
from models.rewrite.fold_scale_shift_ahead import fold_scale_shift_ahead
from models.rewrite.fuse_activation import fuse_activation
from models.rewrite.fuse_attention import fuse_attention
from models.rewrite.fuse_prologue import fuse_prologue
from models.rewrite.fuse_residual import fuse_residual
from models.rewrite.gather_ahead import gather_ahead
from models.rewrite.gather_pixels import gather_pixels
from models.rewrite.global_pool import global_pool
from models.rewrite.group_normalisation import group_normalisation
from models.rewrite.integer_conv import integer_conv
from models.rewrite.integer_move import integer_move
from models.rewrite.integer_stem import integer_stem
from models.rewrite.integer_sum import integer_sum
from models.rewrite.join_slices import join_slices
from models.rewrite.merge_reductions import merge_reductions
from models.rewrite.merge_reshapes import merge_reshapes
from models.rewrite.merge_scale_shifts import merge_scale_shifts
from models.rewrite.merge_siblings import merge_siblings
from models.rewrite.nest_concats import nest_concats
from models.rewrite.project_residual import project_residual
from models.rewrite.recognise_activation import recognise_activation
from models.rewrite.recognise_normalisation import recognise_normalisation
from models.rewrite.rule import Refusal, Rewrite, Rule
from models.rewrite.sink_gather import sink_gather
from models.rewrite.sink_transpose import sink_transpose
from models.rewrite.sum_of_gathered import sum_of_gathered
from models.rewrite.sum_of_parts import sum_of_parts

_FOLDING: tuple[Rule, ...] = (
    # A rule runs only if no rule above it applies. First, rules recognise operations that exporters
    # wrote as several nodes (x + 3 belongs to a HardSwish before it is a ScaleShift), ...
    drop_identity,
    merge_reshapes,
    channel_shuffle,
    recognise_activation,
    recognise_normalisation,
    merge_reductions,
    global_pool,
    drop_expand,
    sum_of_parts,
    group_normalisation,
    fuse_attention,
    sink_transpose,
    gather_pixels,
    gather_ahead,
    sum_of_gathered,
    sink_gather,
    canonical_scale_shift,
    merge_scale_shifts,
    join_slices,
    # ... then nodes are folded into their neighbours, ...
    fold_scale_shift,
    fold_bias,
    fold_into_normalise,
    fold_pad,
    fuse_activation,
    activation_before_concat,
    fuse_residual,
    fold_scale_shift_ahead,
)

_PLACING: tuple[Rule, ...] = (
    flatten_channels_last,
    nest_concats,
    merge_siblings,
    concat_in_place,
)

RULES: tuple[Rule, ...] = (
    *_FOLDING,
    # ... and last, values are placed in memory.
    *_PLACING,
)

RULES_OF_INTEGERS: tuple[Rule, ...] = (
    *_FOLDING,
    # ... operations on quantized values get integer kernels, ...
    integer_conv,
    integer_sum,
    integer_move,
    integer_stem,
    *_PLACING,
)
"""The rules for a quantized network that is computed in INT8."""

RULES_AT_A_PRECISION: tuple[Rule, ...] = (fuse_prologue, project_residual)
"""The rules that follow either list of rules, after each Conv has its precision."""


@dataclass(frozen=True, slots=True)
class RewriteStep:
    """Records one rewrite, in which `rule` replaced the nodes `removed` by the nodes `inserted`."""

    rule: str
    removed: tuple[str, ...]
    inserted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RuleRefusal:
    """Records why a rule left `node` unchanged, or why it added the node `node`, which copies a
    tensor."""

    rule: str
    node: str
    reason: str


@dataclass(frozen=True)
class RewriteResult:
    """Holds a rewritten graph, the rewrites that were applied, and the refusals of rules."""

    graph: Graph
    applied: tuple[RewriteStep, ...]
    refused: tuple[RuleRefusal, ...]

    def made_by(self, node: str) -> tuple[RewriteStep, ...]:
        """Return the rewrites that produced a node, oldest first, or () for a node of the loaded
        graph."""
        return tuple(self.applied[index] for index in sorted(self._made.get(node, ())))

    @cached_property
    def _made(self) -> dict[str, set[int]]:
        """Return, by the name of each node, the rewrites that produced the node, as indices into
        `applied`."""
        made: dict[str, set[int]] = {}
        for index, step in enumerate(self.applied):
            past = {name: made.pop(name, set()) for name in step.removed}
            # A node that keeps its name keeps its own history, and inherits the history of the
            # other nodes.
            ended = {i for name in past.keys() - set(step.inserted) for i in past[name]}
            for name in step.inserted:
                made[name] = {*past.get(name, ()), *ended, index}
        return made


def rewrite(graph: Graph, rules: tuple[Rule, ...] = RULES) -> RewriteResult:
    """Apply the rules to all nodes until no rule changes the graph. Raises GraphError if the
    resulting graph is inconsistent, because a rule has a defect."""
    editor = Editor(graph)
    applied: list[RewriteStep] = []
    caveats: list[RuleRefusal] = []
    refused: list[list[RuleRefusal]] = [[] for _ in rules]
    turn = 0
    while turn < len(rules):
        rule, refused[turn] = rules[turn], []
        changed = False
        for node in editor.nodes():
            match rule(editor, node):
                case Rewrite() as outcome:
                    applied.append(_applied(rule, editor.apply(node, outcome)))
                    caveats += [
                        RuleRefusal(rule.__name__, *item) for item in outcome.caveats.items()
                    ]
                    changed = True
                case Refusal(reason):
                    refused[turn].append(RuleRefusal(rule.__name__, node.name, reason))
        turn = 0 if changed else turn + 1
    standing = [refusal for of_rule in refused for refusal in of_rule]
    return RewriteResult(editor.graph(), tuple(applied), (*standing, *caveats))


def _applied(rule: Rule, change: Change) -> RewriteStep:
    def names(nodes: tuple[Node, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.name for node in nodes))

    return RewriteStep(rule.__name__, names(change.removed), names(change.inserted))
