"""F(9×9, 5×5): the effect of points and scaling on its error."""

from math import isfinite, isinf

from benchmarks.papers.larger_tiles import POINTS, errors


def test_points_lower_the_error_by_orders_and_powers_of_two_by_nothing() -> None:
    found = {
        (name, scaled): errors(points, scaled=scaled, halves=False)
        for name, points in POINTS.items()
        for scaled in (False, True)
    }
    whole, mixed = (found[name, False] for name in POINTS)
    assert whole > 1e6 * mixed > 1e8
    assert all(found[name, True] == found[name, False] for name in POINTS)


def test_in_halves_scaling_keeps_numbers_in_range() -> None:
    points = POINTS["whole numbers"]
    assert isinf(errors(points, scaled=False, halves=True))
    assert isfinite(errors(points, scaled=True, halves=True))
