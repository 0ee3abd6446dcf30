"""What is refused says when to come back."""

import pytest

from service.admission import Admission, ByteRoom, Visit
from service.errors import QueueFullError


@pytest.mark.parametrize(
    ("wait_s", "retry_after"), [(0.0, "1"), (0.2, "1"), (16.4, "17"), (17.0, "17")]
)
def test_retry_after_is_what_the_images_inside_will_take_and_never_zero(
    wait_s: float, retry_after: str
) -> None:
    admission = Admission(
        max_images=2,
        max_images_a_request=2,
        room=ByteRoom(1),
        expected_wait_s=lambda: wait_s,
    )
    with Visit(admission) as first, Visit(admission) as second:
        first.admit(2)
        with pytest.raises(QueueFullError, match=f"try again in {retry_after} s") as refused:
            second.expect_room()
    assert refused.value.headers() == {"Retry-After": retry_after}
