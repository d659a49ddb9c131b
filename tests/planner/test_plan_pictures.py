"""Pictures of computed numbers: they say so, they sum to what was computed, nothing lies outside."""

from __future__ import annotations

import pytest

from llmlab.errors import InvalidParameter
from llmlab.planner.devices import Device
from llmlab.planner.memory import plan_memory, what_fits
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.pictures import fits_grid, memory_stack, parallel_chart, roofline_chart
from llmlab.planner.roofline import decode, prefill, step_work
from llmlab.planner.split_step import split_step
from llmlab.views.glyphs import text_width
from llmlab.views.scene import MAX_MARKS, Grid, Line, Rect, Text

FORMATS = ["bf16", "fp8", "int4"]
LARGE = ModelShape.of("Llama-3-70B")
HERE = Device("this machine", 24e9, 1e10, {"bf16": 1e12, "fp32": 1e11}, ("loopback",), "measured here", True)


def stack(on="h100"):
    return memory_stack([plan_memory(LARGE, on, weights=weights) for weights in FORMATS])


def grid(on="h100"):
    return fits_grid(what_fits(LARGE, on, [1024, 8192, 65536], FORMATS))


def roofline(on="h100"):
    works = {f"decode of {n}": step_work(LARGE, decode(n, 2000)) for n in (1, 16, 256)}
    return roofline_chart(works | {"prefill": step_work(LARGE, prefill(4000))}, on)


def splits(on="h100"):
    ways = ("tensor", "pipeline")
    return parallel_chart({way: split_step(LARGE, decode(8, 2000), way, 4, on, "pcie5") for way in ways}, on, "pcie5")


PICTURES = [stack, grid, roofline, splits]


@pytest.mark.parametrize("picture", PICTURES)
def test_it_says_that_it_is_computed_and_from_what(picture):
    view = picture()
    assert view.title.startswith("COMPUTED: ")
    assert str(view).startswith("COMPUTED: ")
    assert "data sheet" in " ".join(view.notes)
    assert not view.simulated


@pytest.mark.parametrize("picture", PICTURES)
def test_the_same_inputs_give_the_same_picture_and_others_another(picture):
    assert picture().svg == picture().svg
    assert picture().svg != picture("h200").svg


@pytest.mark.parametrize("picture", PICTURES)
def test_text_of_a_measured_device_holds_no_figure_of_it(picture):
    """What nbval compares must not depend on a measurement."""
    slower = Device("this machine", 48e9, 2e10, {"bf16": 2e12, "fp32": 1e11}, ("loopback",), "measured here", True)
    assert str(picture(HERE)) == str(picture(slower))
    assert picture(HERE).alt == picture(slower).alt
    assert not picture(HERE).table().equals(picture(slower).table())


@pytest.mark.parametrize("picture", PICTURES)
def test_nothing_lies_outside_the_picture(picture):
    scene = picture().scene
    assert len(scene.marks) < MAX_MARKS
    for mark in scene.marks:
        for x, y in corners(mark):
            assert -0.5 <= x <= scene.width + 0.5, mark
            assert -0.5 <= y <= scene.height + 0.5, mark


def corners(mark) -> list[tuple[float, float]]:
    match mark:
        case Rect():
            return [(mark.x, mark.y), (mark.x + mark.w, mark.y + mark.h)]
        case Line():
            return list(mark.points)
        case Grid():
            rows, columns = mark.values.shape
            return [(mark.x, mark.y), (mark.x + columns * mark.cell_w, mark.y + rows * mark.cell_h)]
        case Text():
            assert mark.size >= 10
            width = text_width(mark.text, mark.size)
            left = mark.x - {"start": 0, "middle": width / 2, "end": width}[mark.anchor]
            return [(left, mark.y - mark.size), (left + width, mark.y)]


def test_a_stack_is_as_long_as_the_memory():
    """Weights, activations, K/V, free and reserve, in pixels, end at the device's line."""
    view = memory_stack(plan_memory(LARGE, "h100", weights="int4"))
    pieces = [mark for mark in view.scene.marks if isinstance(mark, Rect) and " GB" in mark.tip]
    assert len(pieces) == 5
    assert sum(mark.w for mark in pieces) == pytest.approx(view.scene.width)
    row = view.table().iloc[0]
    assert row.filter(like="_bytes").drop(["room_bytes", "device_memory_bytes"]).sum() == 80e9


def test_what_does_not_fit_goes_beyond_the_line():
    view = stack()
    lines = [mark for mark in view.scene.marks if isinstance(mark, Line) and mark.tip]
    assert [line.stroke for line in lines] == ["alarm", "alarm", "ink"]
    assert "does not fit" in view.text


def test_the_grid_shows_the_plans_requests():
    view = grid()
    shown = [mark.text for mark in view.scene.marks if isinstance(mark, Text)]
    requests = view.table().query("weights == 'int4'").requests
    assert all(f"{count:,}" in shown or count == 0 for count in requests)
    hatched = [mark for mark in view.scene.marks if isinstance(mark, Rect) and mark.hatch]
    assert len(hatched) == 6, "neither bf16 nor fp8 weights leave room"


def test_steps_lie_on_the_roofline():
    table = roofline().table()
    assert list(table.bound) == ["memory", "memory", "memory", "compute"]
    reached = table.flops / table.time_ms * 1e3
    assert list(reached <= 989.4e12 * (1 + 1e-9)) == [True] * 4


def test_bars_of_a_split_sum_to_its_time():
    view = splits()
    table = view.table()
    assert (table.computing_ms + table.communication_ms + table.idle_ms).tolist() == pytest.approx(
        table.time_ms.tolist()
    )


def test_names_are_data():
    view = parallel_chart({"<b>": split_step(LARGE, decode(1, 9), "tensor", 2, "h100", "pcie5")}, "h100", "pcie5")
    assert "<b>" not in view.svg


@pytest.mark.parametrize(
    "call",
    [
        lambda: memory_stack([]),
        lambda: fits_grid([]),
        lambda: fits_grid([what_fits(LARGE, "h100", [c], ["bf16"])[0] for c in (1, 2)]),
        lambda: roofline_chart({}, "h100"),
        lambda: roofline_chart({w: step_work(LARGE, decode(1, 9), weights=w) for w in ("bf16", "fp8")}, "h100"),
        lambda: parallel_chart({}, "h100", "pcie5"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call):
    with pytest.raises(InvalidParameter):
        call()
