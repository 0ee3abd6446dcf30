"""Sets the number of replicas according to Convoy's queue and the number of requests.

Ray's own policy sees only requests. Requests that fill a batch are no reason for another replica,
because Convoy is most efficient with full batches. Images that wait for a batch are a reason. The
mean number of waiting images is near 0 until the engine is busy, and grows without bound as the
engine saturates. If larger batches are not more efficient, a mean of one waiting image corresponds
to a load of about 73% (M/D/1). The autoscaling for Kubernetes uses the same rule.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

WAITING = "waiting_images"


class QueuePolicy:
    """Computes how many replicas the waiting images need and how many the requests in progress
    need. Asks for the larger number.

    With the waiting images alone, the policy would remove replicas from a busy deployment until
    images wait again. Ray applies the bounds and delays in `autoscaling_config`.
    """

    def __init__(self, waiting_images: float = 1.0) -> None:
        """Keep the mean length of each replica's queue, averaged over `look_back_period_s`, at or
        below `waiting_images`."""
        self._waiting_images = waiting_images

    def __call__(self, context: "AutoscalingContext") -> tuple[float, dict[str, Any]]:
        """Return the desired number of replicas, and an empty state."""
        waiting = sum((context.aggregated_metrics or {}).get(WAITING, {}).values())
        requests = context.total_num_requests / context.config.get_target_ongoing_requests()
        return max(waiting / self._waiting_images, requests), {}
