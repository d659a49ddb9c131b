"""Sampling parameters: what is accepted, what is refused, and what the refusal says."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from llmlab.engine.params import SamplingParams
from llmlab.errors import InvalidParameter

REFUSED = [
    ("max_tokens", [-1, 1.5, True, "8"], "whole number at least 0 or None"),
    ("min_tokens", [-1, None, 2.0], "whole number at least 0"),
    ("temperature", [-0.1, 101, math.nan, math.inf, "hot", None, True], "number from 0 to 100"),
    ("top_p", [-0.1, 1.01, math.nan, None], "number from 0 to 1"),
    ("top_p", [0, 0.0], "above 0 and at most 1"),
    ("top_k", [-2, 1.0, None], "whole number at least -1"),
    ("min_p", [-0.1, 1.01, math.nan], "number from 0 to 1"),
    ("repetition_penalty", [0, 1e-30, 101, math.inf], "number from 0.01 to 100"),
    ("presence_penalty", [-2.1, 2.1, math.nan], "number from -2 to 2"),
    ("frequency_penalty", [-2.1, 2.1, 10**400], "number from -2 to 2"),
    ("seed", [1.5, 2**63, -(2**63) - 1, False], "or None"),
    ("n", [0, 129, None], "whole number from 1 to 128"),
    ("logprobs", [-1, 21, True], "whole number from 0 to 20 or None"),
    ("prompt_logprobs", [-1, 21, 1.0], "whole number from 0 to 20 or None"),
    ("stop", [7, None, [7], {"a"}], "a string or a list of strings"),
    ("stop", ["", ["a", ""], "x" * 257], "must have 1 to 256"),
    ("stop", [["a"] * 17], "at most 16"),
    ("stop_token_ids", ["12", 12, None, {1: 2}], "a list of token ids"),
    ("stop_token_ids", [[-1], [1.0], [True]], "whole number at least 0"),
    ("ignore_eos", [0, None, "no"], "True or False"),
    ("include_stop", [1], "True or False"),
    ("cache_salt", [1, None], "a string"),
    ("logit_bias", [None, [1], "x"], "a mapping from token id"),
    ("logit_bias", [{-1: 0}, {"a": 0}, {1.5: 0}, {True: 0}, {"-1": 0}], "whole number at least 0"),
    ("logit_bias", [{1: 101}, {1: math.nan}, {1: None}], "number from -100 to 100"),
    ("logit_bias", [{1: 0, "1": 2}], "names token 1 twice"),
]
CASES = [(name, value, says) for name, values, says in REFUSED for value in values]


@pytest.mark.parametrize(("name", "value", "says"), CASES)
def test_refusal_names_the_parameter_and_what_would_work(name, value, says):
    with pytest.raises(InvalidParameter) as refusal:
        SamplingParams(**{name: value})
    message = str(refusal.value)
    assert name in message
    assert says in message
    assert len(message) < 300


def test_refusal_shows_the_given_value():
    with pytest.raises(InvalidParameter, match=r"temperature=-3\.5"):
        SamplingParams(temperature=-3.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", None),
        ("max_tokens", 1),
        ("temperature", 100),
        ("top_p", 1e-9),
        ("min_p", 1),
        ("seed", -(2**63)),
        ("seed", 2**63 - 1),
        ("logprobs", 0),
        ("prompt_logprobs", 20),
        ("stop", ("x" * 256,) * 16),
        ("logit_bias", {0: -100, 5: 100}),
    ],
)
def test_ends_of_the_ranges_are_accepted(name, value):
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_min_tokens_must_fit_in_max_tokens():
    assert SamplingParams(min_tokens=3, max_tokens=3).min_tokens == 3
    assert SamplingParams(min_tokens=300, max_tokens=None).min_tokens == 300
    with pytest.raises(InvalidParameter, match=r"min_tokens=4 is more than max_tokens=3"):
        SamplingParams(min_tokens=4, max_tokens=3)


def test_values_are_stored_in_one_form():
    params = SamplingParams(
        top_k=-1, temperature=1, stop="END", stop_token_ids=[np.int64(5)], logit_bias={"7": 1}, n=np.int32(2)
    )
    assert (params.top_k, params.stop, params.stop_token_ids) == (0, ("END",), (5,))
    assert params.logit_bias == {7: 1.0}
    assert [type(x) for x in (params.temperature, params.n, *params.stop_token_ids)] == [float, int, int]


def test_callers_bias_can_change_afterwards():
    bias = {3: 1.0}
    params = SamplingParams(logit_bias=bias)
    bias[4] = 2.0
    assert params.logit_bias == {3: 1.0}


def test_several_greedy_samples_are_allowed():
    assert SamplingParams(n=3, temperature=0).greedy


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (9e-6, True), (1e-5, False), (1, False)])
def test_greedy_is_a_temperature_near_zero(temperature, greedy):
    assert SamplingParams(temperature=temperature).greedy is greedy


@pytest.mark.parametrize(
    ("given", "needs"),
    [
        ({}, False),
        ({"temperature": 1.0, "top_k": 5, "min_tokens": 4}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": -0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"logit_bias": {1: 1}}, True),
    ],
)
def test_needs_adjustment_when_logits_change(given, needs):
    assert SamplingParams(**given).needs_adjustment is needs


def test_unknown_name_suggests_the_closest_one():
    with pytest.raises(InvalidParameter, match=r"'temprature'; did you mean temperature"):
        SamplingParams.from_kwargs(temprature=1.0)
    with pytest.raises(InvalidParameter, match=r"'zzz'; known are max_tokens, .*cache_salt"):
        SamplingParams.from_kwargs(zzz=1)


def test_dictionary_survives_json():
    params = SamplingParams.from_kwargs(
        max_tokens=None, stop=["a", "b"], stop_token_ids=(1, 2), logit_bias={3: -1.5}, seed=4, logprobs=2
    )
    values = params.to_dict()
    assert json.loads(json.dumps(values)) == values
    assert SamplingParams.from_kwargs(**values) == params
    assert SamplingParams.from_kwargs(**SamplingParams().to_dict()) == SamplingParams()


def test_token_ids_are_checked_against_the_vocabulary():
    SamplingParams(logit_bias={9: 1}, stop_token_ids=[9]).check_vocab(10)
    for given in ({"logit_bias": {10: 1}}, {"stop_token_ids": [3, 10]}):
        with pytest.raises(InvalidParameter, match=r"token 10, but this model's ids are 0 to 9"):
            SamplingParams(**given).check_vocab(10)
