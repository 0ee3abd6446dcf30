"""Rewriting a randomly drawn graph of small nodes does not change its results."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.rewrite import rewrite
from tests.support.models.graphs import rewritten
from tests.support.models.random_graphs import Draw


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_rewritten_graph_computes_the_same_and_is_rewritten_no_further(
    data: st.DataObject,
) -> None:
    result = rewritten(Draw(data).graph(), rounds=True)
    assert rewrite(result.graph).applied == ()
