"""Interventions do what they say, to their own request only, and leave nothing in the prefix cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from looking import GREEDY, computed, model_of, plain, prompt
from tiny_models import paged_engine

from llmlab.engine.params import SamplingParams
from llmlab.errors import InvalidParameter
from llmlab.probes import Ablate, Capture, Patch

SCORED = SamplingParams(max_tokens=6, logprobs=0)
FAMILIES = ("llama", "gemma2", "gpt2")


def alone(model, intervene=(), capture=None, params=SCORED, **options):
    return paged_engine(model, **options).submit(prompt(), params, intervene=intervene, capture=capture).wait()


def output_logprobs(model, run) -> np.ndarray:
    """Log-probabilities of the output tokens from one plain pass, with whatever hooks are on ``model``."""
    logprobs = plain(model, computed(run)).logits[0].log_softmax(-1)
    start = len(run.prompt_token_ids) - 1
    return logprobs[torch.arange(start, start + len(run.token_ids)), run.token_ids].numpy()


def assert_like(model, run) -> None:
    np.testing.assert_allclose(run.outputs[0].logprobs, output_logprobs(model, run), atol=2e-5)


def decoder_layers(model):
    return next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))


def attention_output(layer):
    """The projection whose input is the heads' outputs side by side."""
    return layer.self_attn.o_proj if hasattr(layer, "self_attn") else layer.attn.c_proj


@pytest.mark.parametrize("budget", [64, 5])
@pytest.mark.parametrize("name", FAMILIES)
def test_an_ablated_head_adds_nothing(name, budget):
    model = model_of(name)
    run = alone(model, Ablate(layer=1, head=2, positions=slice(4, None)), budget=budget)

    def zero(_, args):
        heads = args[0].clone().unflatten(-1, (4, -1))
        heads[:, 4:, 2] = 0
        return (heads.flatten(-2), *args[1:])

    clean = output_logprobs(model, run)
    attention_output(decoder_layers(model)[1]).register_forward_pre_hook(zero)
    assert_like(model, run)
    assert np.abs(clean - run.outputs[0].logprobs).max() > 1e-3


@pytest.mark.parametrize("name", FAMILIES)
def test_an_ablated_layer_passes_its_input_on(name):
    model = model_of(name)
    run = alone(model, [Ablate(layer=0)], budget=7)
    decoder_layers(model)[0].register_forward_hook(
        lambda _, args, out: (args[0], *out[1:]) if isinstance(out, tuple) else args[0]
    )
    assert_like(model, run)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_ablated_position_enters_as_zeros(name):
    model = model_of(name)
    run = alone(model, Ablate(positions=[3, -1]))

    def zero(_, args):
        hidden = args[0].clone()
        hidden[:, [3, 22]] = 0
        return (hidden, *args[1:])

    decoder_layers(model)[0].register_forward_pre_hook(zero)
    assert_like(model, run)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_patched_state_takes_the_place_of_the_layers_output(name):
    model, value = model_of(name), np.linspace(-1, 1, 32)
    run = alone(model, Patch(0, -1, value), budget=9)

    def put(_, __, out):
        hidden = (out[0] if isinstance(out, tuple) else out).clone()
        hidden[:, 22] = torch.from_numpy(value).float()
        return (hidden, *out[1:]) if isinstance(out, tuple) else hidden

    decoder_layers(model)[0].register_forward_hook(put)
    assert_like(model, run)


def test_a_patched_head_takes_the_place_of_its_output():
    model = model_of("llama")
    patched = alone(model, Patch(1, 5, np.zeros(8), head=3))
    ablated = alone(model, Ablate(1, 3, 5))
    assert patched.outputs[0].logprobs == ablated.outputs[0].logprobs


def test_a_state_from_another_run_carries_its_answer_over():
    """With the last layer's state of another prompt, the next token is the other prompt's."""
    model = model_of("llama")
    source = paged_engine(model).submit(prompt(11, 5), SCORED, capture=Capture(hidden=True)).wait()
    clean = alone(model, capture=Capture(hidden=True))
    assert source.token_ids[0] != clean.token_ids[0]
    moved = alone(model, Patch.from_run(source, layer=1, position=10, to=-1))
    assert moved.token_ids[0] == source.token_ids[0]
    same = alone(model, Patch.from_run(clean, layer=0, position=22))
    assert same.token_ids == clean.token_ids
    assert same.outputs[0].logprobs == clean.outputs[0].logprobs
    with pytest.raises(InvalidParameter, match="captured no hidden"):
        Patch.from_run(moved, 0, 0)


def test_what_is_captured_is_the_changed_computation():
    run = alone(model_of("llama"), Ablate(layer=0, positions=4), Capture(hidden=True, embed=True))
    np.testing.assert_array_equal(
        run.captured.hidden.sel(layer=0, position=4).values, run.captured.embed.sel(position=4).values
    )


# -- isolation ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_nothing_of_it_reaches_the_prefix_cache_or_comes_from_it(name):
    model = model_of(name)
    clean = alone(model)
    engine = paged_engine(model)
    changed = engine.submit(prompt(), SCORED, intervene=Ablate(layer=0, head=[0, 1])).wait()
    assert changed.outputs[0].logprobs != clean.outputs[0].logprobs
    after = engine.submit(prompt(), SCORED).wait()
    assert after.usage["cached_tokens"] == 0
    assert (after.token_ids, after.outputs[0].logprobs) == (clean.token_ids, clean.outputs[0].logprobs)
    again = engine.submit(prompt(), SCORED, intervene=Ablate(layer=0, head=[0, 1])).wait()
    assert again.usage["cached_tokens"] == 0
    assert again.outputs[0].logprobs == changed.outputs[0].logprobs
    assert engine.submit(prompt(), SCORED).wait().usage["cached_tokens"] == 20
    engine.check_integrity()
    assert engine.trace.check() == []


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_batch_mates_are_bit_identical(name):
    model = model_of(name)

    def mates(intervene):
        engine = paged_engine(model, budget=13)
        runs = [engine.submit(prompt(n, n), SCORED, intervene=intervene if n == 23 else ()) for n in (19, 23, 9)]
        engine.run_until_idle()
        return [(run.token_ids, run.outputs[0].logprobs) for run in runs]

    clean, changed = mates(()), mates([Ablate(layer=1), Ablate(positions=0), Patch(0, 3, np.ones(32))])
    assert (changed[0], changed[2]) == (clean[0], clean[2])
    assert changed[1] != clean[1]


@pytest.mark.parametrize(("prefix_cache", "host_blocks"), [("hash", 0), ("hash", 20), ("radix", 20)])
def test_a_preempted_changed_request_goes_on_unchanged_in_its_change(prefix_cache, host_blocks):
    model, params = model_of("llama"), SamplingParams(max_tokens=14, logprobs=0)
    change = Ablate(layer=slice(None), head=1)
    undisturbed = paged_engine(model).submit(prompt(9), params, intervene=change).wait()
    engine = paged_engine(model, num_blocks=9, host_blocks=host_blocks, prefix_cache=prefix_cache)
    for start in (1, 2):
        engine.submit(prompt(9, start), params)
    run = engine.submit(prompt(9), params, intervene=change)
    engine.run_until_idle()
    assert run.usage["preemptions"] > 0
    assert (run.usage["recomputed_tokens"] == 0) == bool(host_blocks)
    assert run.token_ids == undisturbed.token_ids
    plainly = engine.submit(prompt(9), params).wait()  # nothing of it is found there by others
    assert plainly.usage["cached_tokens"] == 0
    assert plainly.token_ids == paged_engine(model).submit(prompt(9), params).wait().token_ids


def test_all_samples_of_a_group_are_changed():
    model = model_of("llama")
    params = SamplingParams(max_tokens=6, temperature=1.5, seed=5, n=3, logprobs=0)
    run = paged_engine(model).submit(prompt(8), params, intervene=Ablate(layer=0)).wait()
    decoder_layers(model)[0].register_forward_hook(lambda _, args, out: args[0])
    for output in run.outputs:
        logprobs = plain(model, [*prompt(8), *output.token_ids[:-1]]).logits[0].log_softmax(-1)
        expected = logprobs[torch.arange(7, 13), output.token_ids]
        np.testing.assert_allclose(output.logprobs, expected, atol=2e-5)


def test_the_trace_says_what_was_changed_and_where():
    engine = paged_engine(model_of("llama"))
    changes = [Ablate(layer=1, head=[0, 2], positions=[3, 4]), Patch(0, -1, np.zeros(32)), Ablate(positions=0)]
    run = engine.submit(prompt(), GREEDY, intervene=changes).wait()
    notes = [(note.action, note.reason, note.positions) for note in engine.trace.captured(run.id).notes]
    assert notes == [
        ("ablate", "layer 1, head 0 2", (3, 4)),
        ("patch", "layer 0", (22,)),
        ("ablate", "input of the first layer", (0,)),
    ]


@pytest.mark.parametrize(
    ("intervene", "message"),
    [
        (lambda: Ablate(head=1), "needs its layer"),
        (lambda: Ablate(layer=2), "there are 2"),
        (lambda: Ablate(layer=0, head=4), "there are 4"),
        (lambda: Ablate(positions=99), "positions=99"),
        (lambda: Patch(0, 0, np.zeros(31)), "31 numbers, the model needs 32"),
        (lambda: Patch(0, 0, np.zeros(32), head=0), "32 numbers, the model needs 8"),
        (lambda: Patch(0, 0, [np.nan] * 32), "finite"),
        (lambda: Patch(0, 0, "text"), "no array"),
        (lambda: Patch("model.layers.0", 0, np.zeros(32)), "must be integers"),
        (lambda: ["ablate"], "must be an Ablate"),
    ],
)
def test_what_the_model_does_not_have_is_refused(intervene, message):
    engine = paged_engine(model_of("llama"))
    with pytest.raises(InvalidParameter, match=message):
        engine.submit(prompt(), GREEDY, intervene=intervene())
    assert engine.submit(prompt(3), GREEDY).wait().finished
