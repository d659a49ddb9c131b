"""Grammars: what they let through and hold back, on an engine and alone; hostile schemas are refused in time."""

from __future__ import annotations

import json
import math
import re
import threading
from time import perf_counter

import jsonschema
import pytest
import torch

import llmlab
from llmlab.api.conversation import Tool, ToolChoice
from llmlab.api.errors import ApiError
from llmlab.engine.distribution import argmax
from llmlab.errors import ConstraintError, InvalidParameter
from llmlab.gateway.grammar import Grammars
from llmlab.gateway.grammar_constraint import GrammarConstraint
from llmlab.models.byte_tokenizer import ByteTokenizer

EOS, VOCABULARY = ByteTokenizer.eos_token_id, ByteTokenizer.vocab_size
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = Tool("get_weather", "Weather of a city.", CITY, strict=True)
CLOCK = Tool("clock", "The time.", {"type": "object", "properties": {}, "additionalProperties": False}, strict=True)
TOOLS = (WEATHER, CLOCK)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "C"}}\n</tool_call>'
TICK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
IN_TIME = 10.0
"""Seconds that refusing or serving any schema may take on a slow, busy machine; a hang takes minutes."""


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(ByteTokenizer(), VOCABULARY, (EOS,))


@pytest.fixture(scope="module")
def lab():
    with llmlab.open("mock") as opened:
        yield opened


def ask(lab, constraint, prompt: str = "hi", **params):
    """A finished constrained run of the engine's own thread."""
    from llmlab.engine.params import SamplingParams

    sampling = SamplingParams(**({"max_tokens": 400} | params))
    return lab.engine.submit(lab.tokenizer.encode(prompt), sampling, constraint=constraint).wait(60)


def allowed(constraint: GrammarConstraint) -> set[int]:
    row = constraint.mask(torch.zeros(VOCABULARY))
    return set((row > -math.inf).nonzero().squeeze(-1).tolist())


def follow(make, text: str) -> tuple[str, str]:
    """How much of ``text`` is let through, and then: ``finished``, ``may end`` or ``must go on``."""
    constraint = make()
    for done, byte in enumerate(text.encode()):
        if byte not in allowed(constraint):
            return text[:done], "must go on" if EOS not in allowed(constraint) else "may end"
        constraint.accept(byte)
    if constraint.is_finished:
        return text, "finished"
    return text, "may end" if EOS in allowed(constraint) else "must go on"


def refused(make, text: str) -> str:
    """What of ``text`` was held back."""
    through, _ = follow(make, text)
    return text[len(through) :]


def call_of(text: str) -> tuple[str, dict]:
    """Name and arguments of a text that is exactly one call."""
    found = re.fullmatch(r"<tool_call>\n(\{.*\})\n</tool_call>", text, re.DOTALL)
    assert found, text
    call = json.loads(found[1])
    assert list(call) == ["name", "arguments"]
    return call["name"], call["arguments"]


# -- JSON ----------------------------------------------------------------------------------------------------

SCHEMAS = {
    "city": CITY,
    "numbers": {"type": "array", "items": {"type": "integer", "minimum": -50, "maximum": 999}, "maxItems": 4},
    "nested": {
        "$defs": {"leaf": {"enum": [1, "two", None, True]}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/leaf"}, "b": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"const": [0]}]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
}


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_output_is_json_of_its_schema(grammars, lab, name, seed):
    params = {} if seed is None else {"temperature": 2.0, "seed": seed}
    run = ask(lab, grammars.json(SCHEMAS[name]), prompt=name, **params)
    assert run.stop_reason == "eos"
    jsonschema.validate(json.loads(run.text), SCHEMAS[name])


def test_without_a_schema_any_object_will_do(grammars, lab):
    make = grammars.json(None)
    assert follow(make, '{"a": [1, {"b": null}], "c": "é"}') == ('{"a": [1, {"b": null}], "c": "é"}', "finished")
    assert refused(make, "[1]") == "[1]"
    run = ask(lab, make, logit_bias={ord("}"): 20, ord('"'): 10})
    assert run.stop_reason == "eos"
    assert isinstance(json.loads(run.text), dict)


def test_an_empty_schema_allows_any_value(grammars):
    make = grammars.json({})
    assert follow(make, "[1, 2]")[1] == "finished"
    assert follow(make, '"text"')[1] == "finished"


@pytest.mark.parametrize("blanks", [" ", "\n", "\t"])
def test_blanks_cannot_be_repeated(grammars, blanks):
    make = grammars.json(CITY)
    assert refused(make, f'{{{blanks}"city"') == f'{blanks}"city"'
    assert refused(make, '{"city":  "x"') == ' "x"'
    assert refused(make, '{"city": "x"  ,') == "  ,"
    assert refused(make, f'{{"city":"x","unit":"C"{blanks}}}') == f"{blanks}}}"


def test_whitespace_cannot_be_made_flexible_by_the_schema(grammars):
    assert refused(grammars.json(CITY | {"x-guidance": {"whitespace_flexible": True}}), "{ ") == " "


def test_batched_neighbours_are_not_disturbed(grammars, lab):
    engine, prompt = lab.engine, lab.tokenizer.encode("a neighbour")
    alone = engine.submit(prompt).wait(60).token_ids
    runs = [engine.submit(prompt, constraint=make) for make in (None, grammars.json(CITY), None)]
    assert [run.wait(60).token_ids for run in runs[::2]] == [alone, alone]
    assert json.loads(runs[1].text).keys() == {"city", "unit"}


def test_a_model_without_eos_ends_with_its_grammar():
    make = Grammars(ByteTokenizer(), VOCABULARY, ()).json(CITY)
    assert follow(make, '{"city": "Oslo", "unit": "C"}')[1] == "finished"


def test_more_logits_than_tokens_are_never_chosen():
    constraint = Grammars(ByteTokenizer(), VOCABULARY + 70, (EOS,)).json({})()
    row = torch.zeros(VOCABULARY + 70)
    row[VOCABULARY:] = 9.0
    assert int(argmax(constraint.mask(row))) < VOCABULARY


# -- tool calls ----------------------------------------------------------------------------------------------


def choice(mode: str, name: str | None = None, parallel: bool = True) -> ToolChoice:
    return ToolChoice(mode, name, parallel)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_required_call_is_made_and_is_valid(grammars, lab, seed, parallel):
    params = {} if seed is None else {"temperature": 2.0, "seed": seed}
    make = grammars.tool_calls(TOOLS, choice("any", parallel=parallel))
    run = ask(lab, make, stop=["</tool_call>"], include_stop=True, **params)
    name, arguments = call_of(run.text)
    jsonschema.validate(arguments, {tool.name: tool.input_schema for tool in TOOLS}[name])


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_the_named_tool_is_called_once_and_that_is_all(grammars, lab, tool):
    run = ask(lab, grammars.tool_calls(TOOLS, choice("tool", tool.name, parallel=False)))
    name, arguments = call_of(run.text)
    assert name == tool.name
    jsonschema.validate(arguments, tool.input_schema)
    assert run.stop_reason == "eos"


def test_no_constraint_without_tools_or_when_calls_are_off(grammars):
    assert grammars.tool_calls((), choice("auto")) is None
    assert grammars.tool_calls(TOOLS, choice("none")) is None


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("Just an answer.\nWith <b>, {json} and <tool", "may end"),
        (f"Let me look.\n{CALL}", "may end"),
        (f"{CALL}\n{TICK} and this", "may end"),
        (CALL + CALL, "may end"),
        ("so: <tool_call>", "must go on"),
        ('<tool_call>\n{"name": "clock", "arg', "must go on"),
        (CALL[:-3], "must go on"),
    ],
)
def test_auto_allows_text_and_whole_calls(grammars, text, state):
    assert follow(grammars.tool_calls(TOOLS, choice("auto")), text) == (text, state)


@pytest.mark.parametrize(
    ("text", "held_back"),
    [
        ("see <tool_call>{", "{"),
        ("<tool_call><tool_call>", "<tool_call>"),
        ('<tool_call>\n{"name": "rm"', 'rm"'),
        ('<tool_call>\n{"arguments"', 'arguments"'),
        ('<tool_call>\n{"name": "clock", "arguments": {"x', '"x'),
        ('<tool_call>\n{"name": "get_weather", "arguments": {"unit', "unit"),
        (f"{CALL} <tool_call>x", "x"),
    ],
)
def test_auto_holds_back_what_is_not_a_valid_call(grammars, text, held_back):
    assert refused(grammars.tool_calls(TOOLS, choice("auto")), text) == held_back


def test_auto_without_parallel_calls_ends_with_the_first(grammars):
    make = grammars.tool_calls(TOOLS, choice("auto", parallel=False))
    assert follow(make, "No call at all.") == ("No call at all.", "may end")
    assert follow(make, f"One: {CALL}") == (f"One: {CALL}", "finished")
    assert refused(make, f"{CALL}\n{TICK}") == f"\n{TICK}"


@pytest.mark.parametrize("mode", ["any", "tool"])
def test_a_forced_reply_begins_with_the_call(grammars, mode):
    name = "get_weather" if mode == "tool" else None
    single = grammars.tool_calls(TOOLS, choice(mode, name, parallel=False))
    several = grammars.tool_calls(TOOLS, choice(mode, name, parallel=True))
    assert refused(single, "I will") == refused(several, "I will") == "I will"
    assert follow(single, CALL) == (CALL, "finished")
    assert follow(several, f"{CALL}\n{CALL}{CALL}")[1] == "may end"
    assert refused(several, f"{CALL}\n\n") == "\n"
    assert refused(several, f"{CALL} and") == " and"
    assert bool(refused(several, f"{CALL}\n{TICK}")) == (mode == "tool")


@pytest.mark.parametrize(
    ("tools", "wanted"), [((), choice("any")), (TOOLS, choice("tool", "rm")), ((), choice("tool", "x"))]
)
def test_a_choice_that_names_no_tool_is_refused(grammars, tools, wanted):
    with pytest.raises(ApiError, match="tool_choice asks for a call") as refusal:
        grammars.tool_calls(tools, wanted)
    assert (refusal.value.status, refusal.value.param) == (400, "tool_choice")


def test_names_are_written_as_they_are(grammars):
    make = grammars.tool_calls([Tool('naïve "x" tool')], choice("any"))
    text = '<tool_call>\n{"name": "naïve \\"x\\" tool", "arguments": {}}\n</tool_call>'
    assert follow(make, text) == (text, "may end")


def test_a_tool_that_is_not_strict_may_use_keywords_that_cannot_be_compiled(grammars):
    schema = {"type": "object", "properties": {"a": {"oneOf": [{"type": "integer"}, {"const": "x"}], "not": {}}}}
    make = grammars.tool_calls([Tool("loose", input_schema=schema)], choice("any"))
    assert follow(make, '<tool_call>\n{"name": "loose", "arguments": {"a": 5')[1] == "must go on"
    with pytest.raises(ApiError, match="input schema of tool 'exact'") as refusal:
        grammars.tool_calls([CLOCK, Tool("exact", input_schema=schema, strict=True)], choice("auto"))
    assert refusal.value.param == "tools.1"


# -- hostile schemas -----------------------------------------------------------------------------------------


def chain(length: int, wrap) -> dict:
    """Definitions of which each refers to the next."""
    defs = {f"a{i}": wrap({"$ref": f"#/$defs/a{i + 1}"}) for i in range(length)}
    return {"$defs": defs | {f"a{length}": {"type": "integer"}}, "$ref": "#/$defs/a0"}


def nested(depth: int) -> dict:
    schema: dict = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


REFUSED = {
    "deep": (nested(5_000), "nested 5002 deep|RecursionError"),
    "deeper": (nested(100_000), "RecursionError"),
    "huge enum": ({"enum": [f"value {i}" for i in range(100_000)]}, "bytes of JSON"),
    "many properties": (
        {"type": "object", "properties": {f"p{i}": {} for i in range(4000)}},
        "Too many|Current row",
    ),
    "long chain": (chain(2_000, lambda ref: {"allOf": [ref]}), r"2001 different \$ref"),
    "huge divisor": ({"type": "integer", "multipleOf": 99_999_999}, "multipleOf"),
    "meeting divisors": ({"allOf": [{"multipleOf": 97}, {"multipleOf": 89}, {"multipleOf": 83}]}, "multipleOf"),
    "meeting scales": ({"type": "number", "multipleOf": 1e-7, "anyOf": [{"multipleOf": 3}]}, "multipleOf"),
    "only itself": ({"$ref": "#"}, "no JSON value satisfies it"),
    "remote": ({"$ref": "https://example.com/schema.json"}, "not present in a registry"),
    "file": ({"$ref": "file:///etc/passwd"}, "not present in a registry"),
    "missing": ({"$ref": "#/nowhere"}, "does not exist"),
    "open group": ({"type": "string", "pattern": "("}, "unclosed group"),
    "look-ahead": ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    "many repetitions": ({"type": "string", "pattern": ".*" * 200}, "too many expressions"),
    "no type": ({"type": "fish"}, "fish"),
    "unsatisfiable": ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "Unsatisfiable"),
    "oneOf": ({"oneOf": [{"type": "object"}, {"minProperties": 1}]}, "use anyOf"),
    "surrogate": ({"const": "\ud83d"}, "hex escape"),
    "not a number": ({"const": math.nan}, "expected value"),
    "not JSON": ({"const": object()}, "not plain JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_cannot_work_is_refused_in_time(grammars, name):
    schema, says = REFUSED[name]
    begin = perf_counter()
    with pytest.raises(ApiError, match=says) as refusal:
        grammars.json(schema)
    assert perf_counter() - begin < IN_TIME
    assert (refusal.value.kind, refusal.value.status) == ("invalid_request_error", 400)
    assert refusal.value.message.startswith("the output schema cannot be used to constrain output: ")
    assert len(refusal.value.message) < 500


SERVED = {
    "nested stars": {"type": "string", "pattern": "^(a*)*b$"},
    "long repetition": {"type": "string", "pattern": r"^\d{1,100000}$"},
    "exponential states": {"type": "string", "pattern": "^(a|b)*a(a|b){20}$"},
    "repeated repetitions": {"type": "string", "pattern": "((((((a{0,9}){0,9}){0,9}){0,9}){0,9}){0,9}){0,9}b"},
    "overlapping searches": {"type": "string", "pattern": "(.*a.{0,30}b){10}"},
    "unicode classes": {"type": "string", "pattern": r"^(\p{L}\p{N}|\w\W){1000}$"},
    "long string": {"type": "string", "minLength": 10**6, "maxLength": 10**9},
    "long array": {"type": "array", "minItems": 10**6, "items": {"type": "string"}},
    "large enum": {"enum": [f"value {i}" for i in range(5_000)]},
    "recursion": {"type": "object", "properties": {"c": {"type": "array", "items": {"$ref": "#"}}}},
    "endless recursion": {"type": "object", "properties": {"c": {"$ref": "#"}}, "required": ["c"]},
    "doubling references": chain(30, lambda ref: {"anyOf": [ref, {"type": "array", "items": ref}]}),
}


@pytest.mark.parametrize("name", SERVED)
def test_an_expensive_schema_is_served_in_time(grammars, lab, name):
    begin = perf_counter()
    run = ask(lab, grammars.json(SERVED[name]), prompt=name, max_tokens=150, temperature=1.5, seed=0)
    assert perf_counter() - begin < IN_TIME
    assert run.stop_reason in ("eos", "length")
    assert lab.ask("still alive", max_tokens=3).stop_reason == "length"


def test_a_grammar_that_becomes_too_complex_ends_its_own_request(grammars, lab):
    schema = {"type": "string", "pattern": "^(" + "((((((a{0,9}){0,9}){0,9}){0,9}){0,9}){0,9}){0,9}" + "|x)b$"}
    neighbour = lab.engine.submit(lab.tokenizer.encode("neighbour"))
    with pytest.raises(ConstraintError, match=r"run r[0-9]+: its constraint failed: .* too many"):
        ask(lab, grammars.json(schema), logit_bias={ord("a"): 50})
    assert neighbour.wait(60).stop_reason == "length"


def test_the_longest_reference_chains_fit_the_stack_of_a_thread(grammars):
    deepest = [chain(198, lambda ref: {"allOf": [ref]}), chain(331, lambda ref: ref)]
    made = []
    thread = threading.Thread(target=lambda: made.extend(grammars.json(schema) for schema in deepest))
    thread.start()
    thread.join(60)
    assert [follow(make, "12") for make in made] == [("12", "may end")] * 2


def test_all_schemas_of_a_request_count_together(grammars):
    tools = [Tool(f"t{i}", input_schema=CITY | {"description": "x" * 20_000}) for i in range(20)]
    with pytest.raises(ApiError, match=r"the tools' schemas cannot be used .* bytes of JSON"):
        grammars.tool_calls(tools, choice("auto"))


# -- compiling -----------------------------------------------------------------------------------------------


def test_an_equal_grammar_is_compiled_once_and_the_cache_is_bounded():
    grammars = Grammars(ByteTokenizer(), VOCABULARY, (EOS,))
    for was_cached in (False, True, True):
        assert grammars.json(dict(CITY)).was_cached == was_cached
        assert grammars.tool_calls(list(TOOLS), choice("auto")).was_cached == was_cached
    assert grammars._compiled.cache_info().misses == 2
    for i in range(40):
        grammars.json({"const": i})
    assert grammars._compiled.cache_info().currsize <= 32


def test_constraints_of_one_grammar_do_not_share_their_place(grammars):
    make = grammars.json({"enum": ["ab", "cd"]})
    first, second = make(), make()
    first.accept(ord('"'))
    first.accept(ord("a"))
    assert allowed(first) == {ord("b")}
    assert allowed(second) == {ord('"')}


def test_a_token_that_was_not_allowed_is_an_error(grammars):
    constraint = grammars.json(CITY)()
    with pytest.raises(ConstraintError):
        constraint.accept(ord("x"))


def test_a_tokenizer_whose_bytes_cannot_be_told_is_refused():
    class Slow:
        def __len__(self) -> int:
            return 10

    with pytest.raises(InvalidParameter, match="fast Hugging Face tokenizer, this is a Slow"):
        Grammars(Slow(), 10)


# -- the real model ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(model_path):
    with llmlab.open(str(model_path), num_blocks=64) as opened:
        capacity = opened.engine.capacity
        yield opened, Grammars(opened.tokenizer, capacity.vocab_size, opened.engine.eos_token_ids)


@pytest.mark.model
def test_the_real_model_answers_with_valid_json(real):
    lab, grammars = real
    run = ask(lab, grammars.json(CITY), "The weather in Paris as JSON: ", max_tokens=60)
    jsonschema.validate(json.loads(run.text), CITY)
    assert run.stop_reason == "eos"


@pytest.mark.model
def test_the_real_model_makes_a_required_call(real):
    lab, grammars = real
    make = grammars.tool_calls(TOOLS, choice("tool", "get_weather", parallel=False))
    run = ask(lab, make, "What is the weather in Paris?\n", max_tokens=100)
    name, arguments = call_of(run.text)
    assert name == "get_weather"
    jsonschema.validate(arguments, CITY)


@pytest.mark.model
def test_the_real_tokenizers_special_tokens_are_never_allowed_inside(real):
    lab, grammars = real
    size = lab.engine.capacity.vocab_size
    row = grammars.tool_calls(TOOLS, choice("auto"))().mask(torch.zeros(size))
    special = set(lab.tokenizer.all_special_ids)
    assert {i for i in special if row[i] > -math.inf} <= set(lab.engine.eos_token_ids)
    assert (row > -math.inf).sum() > size // 2
