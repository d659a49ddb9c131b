"""Thinking that comes back is the thinking that was signed."""

from __future__ import annotations

import pytest

from llmlab.api.conversation import Conversation, Text, Thinking, ToolResult, ToolUse, Turn
from llmlab.api.errors import ApiError
from llmlab.gateway.signatures import Signer, check_thinking

SIGNER = Signer()
SIGNED = Thinking("Two and two is four.", SIGNER.sign("model", "Two and two is four."))


def ask(*turns: Turn) -> Conversation:
    return Conversation("anthropic", "model", turns)


def user(text: str) -> Turn:
    return Turn("user", (Text(text),))


def thought(block: Thinking) -> Conversation:
    return ask(user("hello"), Turn("assistant", (block, Text("Four."))), user("again"))


def test_an_unchanged_block_is_accepted():
    assert check_thinking(thought(SIGNED), SIGNER, "model") == thought(SIGNED)


@pytest.mark.parametrize(
    "block",
    [
        Thinking("Two and two is five.", SIGNED.signature),
        Thinking(SIGNED.text, ""),
        Thinking(SIGNED.text, "not base64 at all!"),
        Thinking(SIGNED.text, "é"),
        Thinking(SIGNED.text, Signer().sign("model", SIGNED.text)),
        Thinking(SIGNED.text, SIGNER.sign("another model", SIGNED.text)),
        Thinking("", SIGNED.signature),
        Thinking("sealed", "", redacted=True),
        Thinking(SIGNED.text, SIGNED.signature, redacted=True),
    ],
)
def test_a_changed_or_foreign_block_is_refused_with_its_position(block):
    with pytest.raises(ApiError, match=r"^messages\.1\.content\.0: `thinking` or `redacted_thinking` blocks") as caught:
        check_thinking(thought(block), SIGNER, "model")
    assert caught.value.status == 400
    assert "cannot be modified" in caught.value.message


def test_the_text_of_hidden_thinking_is_restored_from_its_signature():
    hidden = Thinking("", SIGNER.sign("model", "Zwei ✓", embed=True))
    checked = check_thinking(thought(hidden), SIGNER, "model")
    assert checked.turns[1].blocks[0].text == "Zwei ✓"


def test_a_shown_text_must_match_even_when_the_signature_holds_one():
    block = Thinking("something else", SIGNER.sign("model", "Zwei", embed=True))
    with pytest.raises(ApiError):
        check_thinking(thought(block), SIGNER, "model")


def test_every_thinking_block_of_a_running_tool_loop_is_checked():
    forged = Thinking("made up", SIGNED.signature)
    loop = [
        user("go"),
        Turn("assistant", (forged, ToolUse("a", "f", {}))),
        Turn("user", (ToolResult("a"),)),
        Turn("assistant", (SIGNED, ToolUse("b", "f", {}))),
        Turn("user", (ToolResult("b"),)),
    ]
    with pytest.raises(ApiError, match=r"^messages\.1\.content\.0:"):
        check_thinking(ask(*loop), SIGNER, "model")


def test_older_thinking_is_not_read_and_not_checked():
    forged = Turn("assistant", (Thinking("made up"), Text("x")))
    conversation = ask(user("a"), forged, user("b"), Turn("assistant", (SIGNED, Text("y"))), user("c"))
    assert check_thinking(conversation, SIGNER, "model") == conversation


def test_a_given_key_makes_signatures_last_and_a_fresh_one_does_not():
    assert Signer(b"key").sign("m", "t") == Signer(b"key").sign("m", "t")
    assert Signer().sign("m", "t") != Signer().sign("m", "t")
