"""Makes figures for plots of measurements by Matplotlib, which is in the extra `dev`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class NoMatplotlibError(Exception):
    """Says that Matplotlib is not installed; reports then have tables but no plots."""


def figure_of(size: tuple[float, float]) -> "Figure":
    """Return an empty figure of that size in inches. Raises NoMatplotlibError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise NoMatplotlibError(f"no plots: {error}; pip install matplotlib") from error
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
