"""The chart of speedups: axes that keep, points that are what was measured, names from outside as text."""

from bastion.analysis.race_live import LivePoint
from bastion.figures.race_charts import points_table, speedup_figure

DONE = [LivePoint("ar", 1, 1.0, 10.0, False), LivePoint("bastion", 1, 2.0, 20.0, False), LivePoint("bastion", 2, 2.5, 25.0, False),
        LivePoint("bastion", 3, 1.5, 15.0, False)]


def test_the_title_tells_the_finding_and_a_bar_stands_at_each_median():
    figure = speedup_figure(["ar", "bastion"], DONE)
    assert figure.layout.title.text == "bastion is fastest: 2.00x plain decoding"
    assert [list(trace.x) for trace in figure.data] == [[1.0], [2.0, 2.5, 1.5]]
    bars = [shape for shape in figure.layout.shapes if shape.line.width == 3]
    assert [(bar.x0, bar.x1) for bar in bars] == [(1.0, 1.0), (2.0, 2.0)]
    assert list(figure.layout.yaxis.ticktext) == ["ar  <b>1.00x</b>", "bastion  <b>2.00x</b>"]
    assert speedup_figure(["ar", "bastion"], DONE[:1]).layout.title.text == "How much faster than plain decoding?"
    slow = [*DONE[:1], LivePoint("bastion", 1, 0.8, 8.0, False)]
    assert speedup_figure(["ar", "bastion"], slow).layout.title.text == "No method beat plain decoding here"


def test_the_axes_stay_while_a_race_goes_on_and_a_noisy_first_step_does_not_stretch_them():
    early = [LivePoint("bastion", 1, 11.0, 110.0, True)]
    figures = [speedup_figure(["ar", "bastion"], points, live=True) for points in ([], early, DONE)]
    assert {figure.layout.xaxis.range for figure in figures} == {(0, 3.0)}
    assert len({(figure.layout.height, figure.layout.yaxis.range, figure.layout.margin.l) for figure in figures}) == 1
    assert list(figures[1].data[1].x) == [3.0] and figures[1].data[1].marker.symbol == ("triangle-right",)
    assert "11.0x" in figures[1].data[1].customdata[0] and "provisional" in figures[1].data[1].customdata[0]
    assert speedup_figure(["ar"], DONE[:1], axis=6.0).layout.xaxis.range == (0, 6.0)


def test_labels_from_outside_are_text_and_the_table_has_full_precision():
    label = "<b>x</b>" * 9
    point = LivePoint(label, 1, 1 / 3, 0.1 + 0.2, False)
    figure = speedup_figure([label], [point])
    assert "<b>x" not in figure.layout.yaxis.ticktext[0] and "<b>x" not in figure.data[0].hovertemplate and "<b>x" not in figure.layout.title.text
    assert points_table([point]).to_dict("records") == [{"method": label, "repeat": 1, "speedup": 1 / 3, "tokens_per_second": 0.1 + 0.2,
                                                         "provisional": False}]
    assert list(points_table([]).columns) == ["method", "repeat", "speedup", "tokens_per_second", "provisional"]
