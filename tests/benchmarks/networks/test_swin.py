"""Swin-T at reduced size: shifted windows, with all nodes on the kernels."""

import numpy as np

from benchmarks.networks.light import classifier
from benchmarks.networks.swin import Swin, _mask, _offsets, swin
from models.graph import Attention, Product

SMALL = Swin(side=56, width=8, depths=(2, 1), heads=(1, 2), classes=7)


def test_every_block_is_one_attention_with_its_bias() -> None:
    network = classifier("Swin", swin(SMALL))
    assert not network.network.no_kernels
    graph = network.rewritten.graph
    found = [node for node in graph.nodes if isinstance(node, Attention | Product)]
    assert len(found) == 3
    heads = [graph.shape(node.bias) for node in found if isinstance(node, Attention) and node.bias]
    assert [shape[-3:] for shape in heads] == [(1, 49, 49), (1, 49, 49), (2, 49, 49)]


def test_tokens_that_were_not_side_by_side_do_not_see_each_other() -> None:
    """With 4 × 4 tokens shifted by 1, the last window of a row also contains the first column."""
    whole, by_row, by_column, corner = _mask(4, 2, 1) == 0
    assert whole.all()
    assert np.array_equal(by_row[0], [True, False, True, False])
    assert np.array_equal(by_column[0], [True, True, False, False])
    assert np.array_equal(corner, np.eye(4, dtype=bool))


def test_tokens_as_far_apart_share_a_bias() -> None:
    offsets = _offsets(2)
    assert offsets[0, 1] == offsets[2, 3] != offsets[1, 0]
    assert len(np.unique(offsets)) == 9
