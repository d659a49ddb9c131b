"""Lab 02: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

import pytest

from llmlab.checks import check
from llmlab.checks.lab02 import OVERFLOW_CASES, RETRY_CASES, healed_max_tokens, longest_wait, output_tokens
from llmlab.client.overflow import Healing, NoRoomLeft
from llmlab.client.retry import CLI_STYLE
from llmlab.client.stream_errors import ApiFailure


def test_the_right_answers_pass():
    assert check.lab02.q1(output_tokens)
    assert check.lab02.q2(longest_wait)
    assert check.lab02.q2(lambda n: min(500 * 2 ** (n - 1), 32_000) * 1.25)
    assert check.lab02.q3(healed_max_tokens)


def test_the_stubs_do_not_pass():
    assert "replace the ..." in repr(check.lab02.q1(lambda reports: ...))
    assert "replace the ..." in repr(check.lab02.q2(lambda n: ...))
    assert "replace the ..." in repr(check.lab02.q3(lambda input_tokens, context: ...))
    assert "give the function itself" in repr(check.lab02.q2(500))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda reports: sum(each or 0 for each in reports), "totals so far"),
        (lambda reports: reports[0], "the first report"),
        (lambda reports: reports[-1], "keeps the one before it"),
        (len, "the number of reports"),
    ],
)
def test_output_wrongly_counted(wrong, said):
    assert said in repr(check.lab02.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda n: min(500 * 2**n, 32_000) * 1.25, "double n - 1 times"),
        (lambda n: min(500 * 2 ** (n - 1) * 1.25, 32_000), "after the cap"),
        (lambda n: min(500 * 2 ** (n - 1), 32_000), "without jitter"),
        (lambda n: 500 * 2 ** (n - 1) * 1.25, "the cap of 32,000 is missing"),
        (lambda n: min(500 * 2 ** (n - 1), 32_000) / 1000 * 1.25, "in seconds"),
    ],
)
def test_waits_wrongly_computed(wrong, said):
    assert said in repr(check.lab02.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda used, context: context - used if context - used >= 3_000 else 0, "the margin of 1,000"),
        (lambda used, context: context - used - 1_000, "give up below the floor"),
        (lambda used, context: context - used - 1_000 if context - used > 4_000 else 0, "exactly 3,000"),
        (lambda used, context: context - used - 1_000 if context - used >= 3_000 else 0, "after the margin"),
        (lambda used, context: max(context - used - 1_000, 3_000), "refused again"),
    ],
)
def test_overflows_wrongly_healed(wrong, said):
    assert said in repr(check.lab02.q3(wrong))


@pytest.mark.parametrize("retry", [retry for (retry,) in RETRY_CASES])
def test_the_client_waits_what_the_check_calls_longest(retry):
    delay = min(CLI_STYLE.base_s * 2 ** (retry - 1), CLI_STYLE.cap_s) * CLI_STYLE.jitter[1]
    assert longest_wait(retry) == delay * 1000


@pytest.mark.parametrize(("used", "context"), OVERFLOW_CASES)
def test_the_client_heals_as_the_check_calls_right(used, context):
    text = f"input length and `max_tokens` exceed context limit: {used} + 32000 > {context}"
    try:
        healed = Healing().max_tokens_for(ApiFailure(text, status=400))
    except NoRoomLeft:
        healed = 0
    assert healed_max_tokens(used, context) == healed
