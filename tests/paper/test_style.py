import matplotlib
import pytest

from paper import style


def test_nothing_of_the_style_stays_behind():
    before = dict(matplotlib.rcParams)
    with style.house():
        assert matplotlib.rcParams["pdf.fonttype"] == 42
    assert dict(matplotlib.rcParams) == before


def test_bars_stop_above_zero_on_log_axes():
    below, above = style.log_bars([7.0, 3.0, 2.0], [2.0, -2.0, None], [12.0, 8.0, None])
    assert below == pytest.approx([5.0, 2.7, 0.0])
    assert above == pytest.approx([5.0, 5.0, 0.0])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.05, "0.05"),
        (0.25, "0.25"),
        (1, "1"),
        (10, "10"),
        (123, "123"),
        (1500, "1.5k"),
        (2e7, "20M"),
    ],
)
def test_numbers_on_axes_are_short(value, text):
    assert style.short_number(value) == text


def test_twins_have_the_first_colour_and_no_two_names_look_alike():
    looks = style.looks([f"method-{index:02d}" for index in range(40)] + ["twice"])
    assert looks["twice"]["color"] == style.COLOURS[0]
    assert len({tuple(look.values()) for look in looks.values()}) == 41


def test_svg_is_the_same_twice_and_says_no_date():
    def picture():
        with style.house():
            figure, axes = style.panels(2)
            axes[0].plot([1, 2], [3, 4], label="twin")
            axes[0].legend()
            return style.svg(figure)

    assert picture() == picture()
    assert "<metadata>" not in picture()


def test_a_legend_is_no_wider_than_its_figure():
    for width, longest in ((style.PAGE, 16), (style.COLUMN, 16), (style.PAGE, 3)):
        with style.house():
            figure, (panel,) = style.panels(1, width=width)
            for number in range(8):
                panel.plot([0, 1], label=f"{number}" + "e" * (longest - 1))
            style.shared_legend(figure, [panel], last="0")
            figure.draw_without_rendering()
            (legend,) = figure.legends
            box = legend.get_window_extent()
        assert box.width <= figure.bbox.width
        assert [text.get_text()[0] for text in legend.get_texts()][0] == "0"


@pytest.mark.parametrize(
    ("low", "high", "steps"),
    [
        (0.5, 2000, (1,)),
        (0.7, 12, (1, 2, 5)),
        (0.8, 2.6, (1, 1.5, 2, 3, 5, 7)),
        (0.9, 1.6, (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)),
    ],
)
def test_log_axes_name_more_numbers_the_shorter_they_are(low, high, steps):
    assert style.steps_within(low, high) == steps


def test_symmetrical_log_axes_name_fewer_numbers_the_farther_they_reach():
    def named(bottom, top):
        with style.house():
            figure, (panel,) = style.panels(1)
            panel.set_yscale("symlog", linthresh=0.1)
            panel.set_ylim(bottom, top)
            style.plain_symlog_axis(panel.yaxis, linear=0.1)
            figure.draw_without_rendering()
            return [label.get_text() for label in panel.get_yticklabels()]

    assert {"0", "0.2", "0.5", "1"} <= set(named(-0.05, 2.0))
    assert "0.2" not in named(-50.0, 50.0) and "\N{MINUS SIGN}10" in named(-50.0, 50.0)
