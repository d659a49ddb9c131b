from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from llmlab.bench.measure import Plan, Sample, turns
from llmlab.bench.report import (
    advantage,
    medians,
    ratio,
    report_object,
    report_tables,
    token_agreement,
    verdicts,
)
from llmlab.bench.workloads import by_name
from llmlab.errors import InvalidParameter


def sample(contender, number, value, *, workload="W3", metric="output_tokens_per_s", dtype="bf16", tokens=None):
    return Sample(dtype, workload, contender, number, {metric: value}, [{"seconds": 1.0}], tokens)


# the machine slows down to a third in round 3; within every round llmlab is three, two and four times as fast
DRIFTING = [
    *(sample("llmlab", i, value) for i, value in ((1, 90.0), (2, 60.0), (3, 40.0))),
    *(sample("generate_batch", i, value) for i, value in ((1, 30.0), (2, 30.0), (3, 10.0))),
]


def plan(**changes):
    settings = {
        "workloads": ["W3"],
        "dtypes": ["bf16"],
        "contenders": ["llmlab", "generate_batch"],
        "repeats": 3,
        "quick": False,
        "model": "smollm2-135m",
        "device": "cpu",
    }
    return Plan.make(**settings | changes)


def shown(tables):
    out = io.StringIO()
    for table in tables:
        Console(file=out, width=100).print(table)
    return out.getvalue()


def test_medians_are_per_contender():
    assert medians(DRIFTING, "bf16", "W3", "output_tokens_per_s") == {"llmlab": 60.0, "generate_batch": 30.0}


def test_ratio_is_taken_within_rounds_before_the_median():
    figure, base = ("llmlab", "output_tokens_per_s"), ("generate_batch", "output_tokens_per_s")
    assert ratio(DRIFTING, "bf16", "W3", figure, base) == 3.0  # the ratio of medians would be 2


def test_round_without_a_partner_does_not_count():
    figure, base = ("llmlab", "output_tokens_per_s"), ("generate_batch", "output_tokens_per_s")
    assert ratio(DRIFTING[:4], "bf16", "W3", figure, base) == 3.0
    assert ratio(DRIFTING[:3], "bf16", "W3", figure, base) is None


def test_advantage_is_above_one_when_llmlab_is_better_in_either_direction():
    rate, seconds = by_name()["W3"].metrics[0], by_name()["W4"].metrics[0]
    assert advantage(DRIFTING, "bf16", "W3", rate, "generate_batch") == 3.0
    times = [
        sample(name, 1, value, workload="W4", metric="warm_s") for name, value in (("llmlab", 2.0), ("generate", 8.0))
    ]
    assert advantage(times, "bf16", "W4", seconds, "generate") == 4.0


def test_targets_are_judged_by_their_own_side():
    overhead = [sample("llmlab", 1, 0.06, workload="overhead", metric="outside_forward")]
    judged = {verdict.target.workload: verdict.met for verdict in verdicts([*DRIFTING, *overhead])}
    assert judged == {"W3": True, "overhead": False}


def test_tables_show_ratio_and_verdict():
    text = shown(report_tables(plan(), DRIFTING))
    assert "30 (3.00x)" in text
    assert "at least 2.5" in text
    assert "met" in text


def test_missed_target_says_so():
    slow = [sample("llmlab", 1, 20.0), sample("generate_batch", 1, 10.0)]
    assert "MISSED" in shown(report_tables(plan(), slow))


def test_shortened_workloads_are_not_judged():
    quick = plan(quick=True)
    text = shown(report_tables(quick, DRIFTING))
    assert "shortened" in text
    assert "at least" not in text
    assert [target["met"] for target in report_object(quick, DRIFTING, [])["targets"]] == [None]


@pytest.mark.parametrize(("recorded", "verdict"), [(1.03, "MISSED"), (1.01, "met")])
def test_recording_may_cost_two_percent(recorded, verdict):
    both = sample("llmlab", 1, recorded, workload="tracing", metric="recorded_s")
    both.metrics["unrecorded_s"] = 1.0
    text = shown(report_tables(plan(workloads=["tracing"]), [both]))
    assert "unrecorded_s" in text
    assert verdict in text


def test_agreement_counts_rounds_with_equal_tokens_in_float32_only():
    def w1(contender, number, tokens, dtype="fp32"):
        return sample(contender, number, 1.0, workload="W1", dtype=dtype, tokens=tokens)

    samples = [
        *(w1("llmlab", 1, [[1, 2]]), w1("generate", 1, [[1, 2]])),
        *(w1("llmlab", 2, [[1, 2]]), w1("generate", 2, [[1, 3]])),
        *(w1("llmlab", 1, [[5]], "bf16"), w1("generate", 1, [[5]], "bf16")),
    ]
    assert token_agreement(samples) == {"generate": (1, 2)}


def test_report_object_is_json_with_machine_versions_and_command():
    report = json.loads(json.dumps(report_object(plan(), DRIFTING, ["bench", "--dtype", "bf16 "])))
    assert report["command"] == "llmlab bench --dtype 'bf16 '"
    assert {"cpu", "logical_cores", "memory_bytes", "load"} <= report["machine"].keys()
    assert {"python", "torch", "transformers"} <= report["versions"].keys()
    assert report["plan"]["threads"] == 1
    assert len(report["samples"]) == 6
    assert report["targets"][0]["value"] == 3.0


def test_every_contender_is_first_in_some_round():
    names = ["a", "b", "c"]
    assert [turns(names, i) for i in range(3)] == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert turns([], 1) == []


def test_long_names_of_number_formats_are_understood():
    assert plan(dtypes=["float32", "bf16", "fp32"]).dtypes == ("fp32", "bf16")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"workloads": ["W9"]}, "W9"),
        ({"dtypes": ["int8"]}, "int8"),
        ({"contenders": ["vllm"]}, "vllm"),
        ({"model": "mock"}, "--contenders llmlab"),
        ({"workloads": ["tracing"], "contenders": ["generate"]}, "generate"),
    ],
)
def test_plan_that_cannot_be_served_is_refused(changes, named):
    with pytest.raises(InvalidParameter, match=named):
        plan(**changes)
