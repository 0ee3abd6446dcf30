"""Sets the number of replicas by Convoy's queue and by requests.

Ray's own policy sees requests only. A full batch of requests in a replica is no reason for another
replica, because Convoy works best so; images that wait for a batch are a reason. Their mean number
is near 0 until the engine is busy and grows without bound as it saturates; one waiting image is a
load of about 73% where batches do not pay (M/D/1). Kubernetes' component has the same rule.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

WAITING = "waiting_images"


class QueuePolicy:
    """Asks for the replicas that the queue needs, or those that the requests need if these are
    more.

    Without the requests it would remove replicas from a busy deployment until images wait again.
    Ray applies the bounds and delays of `autoscaling_config`.
    """

    def __init__(self, waiting_images: float = 1.0) -> None:
        """Aim at no more than `waiting_images` in each replica's queue, as a mean over
        `look_back_period_s`."""
        self._waiting_images = waiting_images

    def __call__(self, context: "AutoscalingContext") -> tuple[float, dict[str, Any]]:
        """Return the wanted number of replicas, and no state."""
        waiting = sum((context.aggregated_metrics or {}).get(WAITING, {}).values())
        requests = context.total_num_requests / context.config.get_target_ongoing_requests()
        return max(waiting / self._waiting_images, requests), {}
