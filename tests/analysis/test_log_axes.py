"""Logarithmic axes have plain numbers at their ticks."""

from matplotlib.figure import Figure

from t3sim.analysis import style


def test_ticks_of_logarithmic_axes_are_plain_numbers() -> None:
    """Values less than a decade apart too, where Matplotlib writes 6 x 10^1."""
    for times in ([56.0, 87.0, 109.0], [3.0, 40.0, 5000.0]):
        figure = Figure()
        axes = figure.subplots()
        axes.plot([16, 64, 256], times)
        style.log_axes(axes, [16, 64, 256])
        figure.draw_without_rendering()
        assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "64", "256"]
        low, high = axes.get_ylim()
        along_y = [label.get_text() for label in axes.get_yticklabels() if low <= label.get_position()[1] <= high]
        assert len(along_y) >= 3
        assert all(text.isdigit() for text in along_y)
