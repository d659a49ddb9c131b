"""What holds for each view, whatever it shows."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pictures
import pytest
import recordings

from llmlab import views
from llmlab.errors import LabError
from llmlab.trace import Trace
from llmlab.views.palette import TEXT_ROLES
from llmlab.views.scene import MAX_MARKS, Rect, Scene, Text
from llmlab.views.view import View

TRACES = ("lab_trace", "draft_trace", "wire_trace", "capture_trace", "experts_trace", "hostile_trace")
# where there is something to see for a view, if not in the requests of a lab
HOMES = {
    "exchanges": "wire",
    "wire_view": "wire",
    "anatomy": "wire",
    "draft_rounds": "drafts",
    "expert_load": "experts",
    "rank_lanes": "ranks",
    **dict.fromkeys(("attention", "attention_heads", "hidden", "lens", "distribution"), "captures"),
}
SHAPES = ("attention_heads",)  # whose text names what was looked at, and not what was seen
OTHERS = {
    "wire": "Another beginning, for other questions. ",
    "drafts": "Tell me more about it. ",
    "captures": 5,
    "experts": 5,
    "ranks": 5,
}


@pytest.fixture(params=views.OF_A_TRACE)
def name(request) -> str:
    return request.param


@pytest.fixture(params=TRACES)
def trace(request) -> Trace:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def homes(lab_trace, draft_trace, wire_trace, capture_trace, experts_trace, ranks_trace) -> dict[str, Trace]:
    """Traces by kind, each with something to see for the views that are at home there."""
    kinds = {"lab": lab_trace, "drafts": draft_trace, "wire": wire_trace}
    return kinds | {"captures": capture_trace, "experts": experts_trace, "ranks": ranks_trace}


@pytest.fixture(scope="session")
def again() -> dict[str, Trace]:
    """The same recorded once more."""
    kinds = ("lab", "drafts", "wire", "captures", "experts", "ranks")
    return {kind: getattr(recordings, f"record_{kind}")() for kind in kinds}


@pytest.fixture(scope="session")
def others(other_trace) -> dict[str, Trace]:
    """Other requests of each kind."""
    return {"lab": other_trace} | {kind: getattr(recordings, f"record_{kind}")(what) for kind, what in OTHERS.items()}


def draw(name: str, trace: Trace) -> View:
    return getattr(views, name)(trace)


def test_the_checks_of_pictures_find_what_they_look_for():
    marks = (
        Text(10, 20, "one label", on="c0"),
        Text(30, 22, "another"),
        Rect(100, 0, 50, 20, "ink"),
        Text(105, 14, "dark"),
        Rect(180, 0, 40, 20, "c0"),
        Text(170, 60, "runs out of it"),
    )
    scene = Scene(200, 64, marks)
    assert pictures.overlapping(scene) == [("one label", "another")]
    assert pictures.outside(scene) == [marks[4], marks[5]]
    assert pictures.least_contrast(scene, "light") == (1, "dark")
    assert pictures.unsafe('<svg onload="x"><script/><g style="y"/></svg>') == ["svg onload", "script", "g style"]


def test_the_names_of_the_package_are_views_also_after_their_modules_were_imported(name):
    __import__(f"llmlab.views.{name}")
    assert callable(getattr(views, name))
    assert getattr(views, name) in views.ALL


def test_the_picture_is_plain_svg_without_what_pages_strip(name, trace):
    view = draw(name, trace)
    for theme in ("light", "dark"):
        svg = view.draw(theme)
        assert pictures.unsafe(svg) == []
        svg.encode("utf-8")
        assert "\u202e" not in svg
        assert "\x00" not in svg


def test_everything_is_inside_the_picture_and_large_enough_to_read(name, trace):
    scene = draw(name, trace).scene
    assert pictures.outside(scene) == []
    assert all(mark.size >= 10 for mark in scene.marks if isinstance(mark, Text))
    assert 0 < len(scene.marks) <= MAX_MARKS


def test_no_label_lies_on_another(name, trace):
    assert pictures.overlapping(draw(name, trace).scene) == []


def test_labels_can_be_read_in_both_themes(name, trace):
    scene = draw(name, trace).scene
    assert all(mark.on or mark.fill in TEXT_ROLES for mark in scene.marks if isinstance(mark, Text))
    for theme in ("light", "dark"):
        contrast, text = pictures.least_contrast(scene, theme)
        assert contrast >= 4.5, (theme, text)


def test_a_second_run_has_the_same_text(name, homes, again):
    home = HOMES.get(name, "lab")
    one, other = draw(name, homes[home]), draw(name, again[home])
    assert (str(one), one.alt) == (str(other), other.alt)
    assert one.text.strip()


def test_other_requests_give_another_picture_text_and_table(name, homes, others):
    home = HOMES.get(name, "lab")
    one, other = draw(name, homes[home]), draw(name, others[home])
    assert one.text != other.text or name in SHAPES
    assert one.scene.marks != other.scene.marks
    assert len(one.frame)
    assert not one.frame.equals(other.frame)


@pytest.mark.parametrize("empty", [Trace([]), recordings.info_only()], ids=["nothing", "info"])
def test_a_trace_without_events_is_told_and_how_to_record_some(name, empty):
    view = draw(name, empty)
    assert "lab" in view.text
    assert len(view.table()) == 0
    assert pictures.unsafe(view.svg) == []
    assert any(isinstance(mark, Text) and len(mark.text) > 20 for mark in view.scene.marks)


def test_what_is_not_in_the_trace_is_refused_by_name(name, lab_trace):
    if name in ("step_timeline", "batch_lanes", "rank_lanes"):
        with pytest.raises(LabError, match="0 to 8"):
            getattr(views, name)(lab_trace, first_step=10_000)
    elif name == "block_map":
        with pytest.raises(LabError, match="0 to 8"):
            getattr(views, name)(lab_trace, 10_000)
    else:
        with pytest.raises(LabError, match="nobody"):
            getattr(views, name)(lab_trace, "nobody")


def test_the_picture_of_a_lab_is_small_enough_for_a_notebook(name, homes):
    assert len(draw(name, homes[HOMES.get(name, "lab")]).svg.encode()) < 64 * 1024


def test_a_long_trace_is_drawn_in_time_and_within_bounds(name, long_trace):
    start = time.process_time()
    view = draw(name, long_trace)
    assert time.process_time() - start < 3
    assert len(view.scene.marks) <= MAX_MARKS
    assert len(view.svg.encode()) < 512 * 1024
    assert len(str(view)) < 64 * 1024
    assert pictures.outside(view.scene) == []


def test_a_figure_is_a_plain_one_and_see_through(name, homes):
    view = draw(name, homes[HOMES.get(name, "lab")])
    if view.plot is None:
        pytest.skip("it has no figure")
    figure = view.figure()
    assert type(figure).__name__ == "Figure"
    assert figure.layout.paper_bgcolor == "rgba(0,0,0,0)"
    assert figure.data


REPLAY = """
import json, sys
for blocked in ("torch", "transformers", "jinja2", "tokenizers"):
    sys.modules[blocked] = None  # importing it now fails
from llmlab import views
from llmlab.trace import Trace
drawn = {}
for home, path in json.loads(sys.argv[1]).items():
    trace = Trace.load(path)
    for view in views.ALL:
        drawn[f"{home} {view.__name__}"] = [str(view(trace)), view(trace).svg]
json.dump(drawn, open(sys.argv[2], "w"))
"""


def test_a_saved_trace_gives_the_same_pictures_without_torch(homes, tmp_path):
    paths = {home: str(trace.save(tmp_path / f"{home}.gz", captures=True)) for home, trace in homes.items()}
    command = [sys.executable, "-c", REPLAY, json.dumps(paths), str(tmp_path / "drawn.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    replayed = json.loads((tmp_path / "drawn.json").read_text())
    for home, trace in homes.items():
        for view in views.ALL:
            drawn = view(trace)
            assert replayed[f"{home} {view.__name__}"] == [str(drawn), drawn.svg], (home, view.__name__)
