"""Creates figures for plots of measurements with Matplotlib, which is in the extra `dev`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class NoMatplotlibError(Exception):
    """Raised when Matplotlib is not installed. Reports then have tables but no plots."""


def figure_of(size: tuple[float, float]) -> "Figure":
    """Return an empty figure of the given size in inches. Raises NoMatplotlibError."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise NoMatplotlibError(
            f"plots need Matplotlib ({error}); run pip install matplotlib"
        ) from error
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
