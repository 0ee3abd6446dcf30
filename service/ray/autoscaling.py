"""Sets the number of replicas according to Convoy's queue and the number of requests.

Ray's own policy sees only requests. A full batch of requests in a replica is no reason for another
replica, because Convoy is most efficient then. Images that wait for a batch are a reason. The mean
number of waiting images is near 0 until the engine is busy, and grows without bound as the engine
saturates. If batches do not pay, one waiting image means a load of about 73% (M/D/1). The component
for Kubernetes uses the same rule.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

WAITING = "waiting_images"


class QueuePolicy:
    """Requests as many replicas as the queue needs or as the requests need, whichever is more.

    If it ignored requests, it would remove replicas from a busy deployment until images wait again.
    Ray applies the bounds and delays in `autoscaling_config`.
    """

    def __init__(self, waiting_images: float = 1.0) -> None:
        """Aim at no more than `waiting_images` in each replica's queue, averaged over
        `look_back_period_s`."""
        self._waiting_images = waiting_images

    def __call__(self, context: "AutoscalingContext") -> tuple[float, dict[str, Any]]:
        """Return the desired number of replicas, and an empty state."""
        waiting = sum((context.aggregated_metrics or {}).get(WAITING, {}).values())
        requests = context.total_num_requests / context.config.get_target_ongoing_requests()
        return max(waiting / self._waiting_images, requests), {}
