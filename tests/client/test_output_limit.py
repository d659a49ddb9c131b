"""Little output at first, much after the first truncation."""

from __future__ import annotations

import pytest

from llmlab.client.output_limit import OutputLimit, limit_for
from llmlab.errors import InvalidParameter, LabError


def test_one_truncation_escalates_and_it_stays_so():
    limit = OutputLimit()
    assert (limit.max_tokens, limit.escalate("end_turn"), limit.max_tokens) == (8_000, False, 8_000)
    assert (limit.escalate("max_tokens"), limit.max_tokens) == (True, 64_000)
    assert (limit.escalate("max_tokens"), limit.escalate("end_turn"), limit.max_tokens) == (False, False, 64_000)


@pytest.mark.parametrize(
    ("window", "default", "escalated"), [(1, 1, 1), (2_048, 256, 1_024), (8_192, 1_024, 4_096), (10**6, 8_000, 64_000)]
)
def test_a_small_context_gets_small_limits(window, default, escalated):
    limit = OutputLimit.for_context(window)
    assert (limit.default, limit.escalated) == (default, escalated)


def test_without_room_to_grow_nothing_escalates():
    assert not OutputLimit(10, 10).escalate("max_tokens")


@pytest.mark.parametrize("pair", [(0, 5), (6, 5)])
def test_limits_out_of_order_are_refused(pair):
    with pytest.raises(InvalidParameter):
        OutputLimit(*pair)


class Server:
    """Only its list of models."""

    def __init__(self, *models: dict) -> None:
        self.listed = list(models)

    def models(self) -> list[dict]:
        if not self.listed:
            raise LabError("not found")
        return self.listed


SMALL, LARGE = {"id": "small", "max_input_tokens": 4_096}, {"id": "large", "max_input_tokens": 32_768}


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ([SMALL, LARGE | {"id": "m"}], (4_096, 16_384)),
        ([LARGE, SMALL], (512, 2_048)),
        ([SMALL | {"id": "m", "max_tokens": 100}], (100, 100)),
        ([{"id": "m", "max_input_tokens": None}, {"max_input_tokens": "many"}], (1_024, 4_096)),
        ([], (1_024, 4_096)),
    ],
    ids=["its own window", "another one may stand in", "the server's limit", "not told", "no list"],
)
def test_a_limit_fits_the_model_as_its_server_describes_it(models, expected):
    limit = limit_for(Server(*models), "m")
    assert (limit.default, limit.escalated) == expected


def test_a_sender_without_a_list_of_models_gets_a_small_limit():
    assert limit_for(object(), "m").max_tokens == 1_024
