"""The autoscaling policy, without Ray."""

from types import SimpleNamespace

import pytest

from service.ray.autoscaling import WAITING, QueuePolicy


def wanted(policy: QueuePolicy, waiting: list[float], requests: float) -> float:
    """Return the number of replicas that the policy wants if the replicas have these numbers of
    waiting images. 8 requests fill a batch."""
    context = SimpleNamespace(
        aggregated_metrics={WAITING: dict(enumerate(waiting))} if waiting else None,
        total_num_requests=requests,
        config=SimpleNamespace(get_target_ongoing_requests=lambda: 8.0),
    )
    replicas, state = policy(context)
    assert state == {}
    return replicas


@pytest.mark.parametrize(
    ("waiting", "requests", "replicas"),
    [
        pytest.param([], 0, 0, id="nothing is known yet"),
        pytest.param([0, 0], 0, 0, id="idle"),
        pytest.param([0.1, 0.2], 16, 2, id="busy, and nothing waits: two full batches stay"),
        pytest.param([1, 1], 16, 2, id="the load that is wanted"),
        pytest.param([4, 2], 24, 6, id="images wait, more than the requests say"),
        pytest.param([0, 0], 4, 0.5, id="half a batch"),
    ],
)
def test_the_queue_adds_replicas_and_requests_keep_them(
    waiting: list[float], requests: float, replicas: float
) -> None:
    assert wanted(QueuePolicy(), waiting, requests) == replicas


def test_more_images_may_wait_where_that_is_wanted() -> None:
    assert wanted(QueuePolicy(waiting_images=2), [4, 2], 8) == 3
