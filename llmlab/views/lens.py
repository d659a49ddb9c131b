"""The logit lens as a table: what every layer would say at every position.

Final norm and head applied to the hidden state after each layer; the last layer's row is the model's own distribution.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.captures import Captures, Lens
from llmlab.trace.trace import Trace
from llmlab.views import looked
from llmlab.views.choose import token_label
from llmlab.views.glyphs import visible
from llmlab.views.heatmap import heatmap
from llmlab.views.lens_scene import MAX_LAYERS, Sheet, max_positions, sheet_scene
from llmlab.views.view import View

STATISTICS = ("token", "entropy", "kl", "rank")
KINDS = ("lens_top", "lens_top_logprob", "lens_entropy", "lens_kl", "lens_rank", "lens_target_logprob", "lens_error")
TITLES = {"token": "likeliest tokens", "entropy": "entropy", "kl": "KL to the last layer", "rank": "rank"}
SAYS = {
    "token": "each layer's likeliest next token, coloured by its probability",
    "entropy": "entropy of each layer's distribution (nats)",
    "kl": "KL divergence from the last layer's distribution (nats)",
    "rank": "rank of one token in each layer's distribution (0 is the likeliest)",
}


def lens(
    trace: Trace,
    request_id: str | None = None,
    *,
    statistic: str = "token",
    positions: int | slice | Iterable[int] | None = None,
    target: int | None = None,
    width: float = 960,
) -> View:
    """Layers by positions: the likeliest token of each layer, or a ``statistic`` (``token``, ``entropy``, ``kl``,
    ``rank``) of its distribution. Outlined: the first layer whose likeliest token is the last layer's.

    ``positions`` of the sequence are those the next token is predicted after (default: the last that fit).
    ``rank`` is that of ``target`` (a token id given to the capture's ``targets``; default the first of them), and
    without targets the place of the last layer's choice among the tokens that were kept.

    Raises ``UnknownRequest`` and ``InvalidParameter`` (what was not recorded, a statistic that is none).
    """
    if statistic not in STATISTICS:
        raise InvalidParameter(f"statistic={statistic!r} is none: choose one of {', '.join(STATISTICS)}")
    looked.check_size("width", width, looked.MIN_WIDTH, 4_000)
    request_id = looked.looked_at(trace, request_id, "lens_top")
    captures = looked.captures_of(trace, request_id, KINDS) if request_id else None
    if captures is None or not captures.events:
        return looked.missing(trace, "lens", request_id, "lens_top", "lens", width)
    return _view(_sheet(trace, captures, statistic, positions, target, max_positions(width)), width)


def _sheet(trace: Trace, captures: Captures, statistic: str, wanted, target: int | None, room: int) -> Sheet:
    request_id = captures.request_id
    known = tuple(sorted({p for event in captures.events if event.kind == "lens_top" for p in event.positions}))
    chosen = looked.some_of("positions", wanted, known)
    shown = chosen[-room:] if wanted is None else chosen[:room]
    part = looked.captures_of(trace, request_id, KINDS, positions=shown).lens
    if part is None:
        raise InvalidParameter(f"the lens of {visible(request_id)} was not recorded whole: its arrays are not all here")
    layers = part.top.labels["layer"]
    numbers = _numbers(part, shown)
    last = layers[-1] if trace.info is None or layers[-1] == trace.info.num_layers - 1 else None
    value, words, unit = _statistic(trace, part, numbers, statistic, target, shown)
    ids = looked.token_ids(trace, request_id)
    submitted = trace.index.submitted.get(request_id)
    return Sheet(
        request_id=request_id,
        statistic=statistic,
        unit=unit,
        layers=layers,
        shown=_strided(layers),
        positions=shown,
        left_out=len(chosen) - len(shown),
        is_windowed=wanted is None,
        values=value,
        words=words,
        numbers=numbers,
        tokens={i: token_label(trace, i) for i in np.unique(numbers.top).tolist()},
        labels=looked.labels_at(trace, request_id, shown),
        following={p: token_label(trace, ids[p + 1]) for p in shown if p + 1 in ids},
        num_prompt=len(submitted.prompt_token_ids) if submitted else 0,
        last=last,
        agrees=_agrees(numbers.top[..., 0]) if last is not None else None,
        num_cached=looked.num_cached(captures),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """``top`` and ``logprob`` ``(layers, positions, kept)``, ``entropy`` and ``kl`` ``(layers, positions)``, in nats;
    ``error`` is the largest difference from the model's logits, ``None`` where there were none."""

    top: np.ndarray
    logprob: np.ndarray
    entropy: np.ndarray
    kl: np.ndarray
    error: float | None


def _numbers(part: Lens, shown: tuple[int, ...]) -> Numbers:
    arrays = [a.sel(position=list(shown)).values for a in (part.top, part.top_logprob, part.entropy, part.kl)]
    checked = [] if part.error is None else [p for p in part.error.labels["position"] if p in set(shown)]
    error = float(np.nanmax(part.error.sel(position=checked).values)) if checked else None
    return Numbers(arrays[0], *(a.astype(np.float64) for a in arrays[1:]), error)


def _strided(layers: tuple[int, ...]) -> tuple[int, ...]:
    """At most ``MAX_LAYERS`` of the layers, evenly, the last one always."""
    step = -(-len(layers) // MAX_LAYERS)
    return tuple(sorted(layers[::-1][::step]))


def _agrees(top: np.ndarray) -> np.ndarray:
    """``(positions,)`` the place of the first layer whose likeliest token is the last layer's."""
    return (top == top[-1]).argmax(axis=0)


def _statistic(
    trace: Trace, part: Lens, numbers: Numbers, statistic: str, target: int | None, shown: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, str]:
    """Shares for the colour ``(layers, positions)``, what the cells say, and what 1 stands for."""
    if statistic == "token":
        words = {i: token_label(trace, i) for i in np.unique(numbers.top[..., 0]).tolist()}
        named = np.vectorize(words.__getitem__, otypes=[object])(numbers.top[..., 0])
        return np.exp(numbers.logprob[..., 0]), named, "probability 1"
    if statistic == "rank":
        return _rank(trace, part, numbers, target, shown)
    values = numbers.entropy if statistic == "entropy" else numbers.kl
    most = float(values[np.isfinite(values)].max(initial=0)) or 1.0
    named = np.vectorize(lambda v: f"{v:.2f}", otypes=[object])(values)
    return values / most, named, f"{most:.2f} nats"


def _rank(
    trace: Trace, part: Lens, numbers: Numbers, target: int | None, shown: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, str]:
    """Colour is 1 for rank 0 and falls with the logarithm of the rank."""
    if part.rank is not None:
        targets = part.rank.labels["target"]
        token = targets[0] if target is None else looked.one_of("target", target, targets, 0)
        ranks = part.rank.sel(target=token, position=list(shown)).values
        name = f"rank 0, of {token_label(trace, token)}"
        words = ranks.astype(str).astype(object)
    else:
        if target is not None:
            raise InvalidParameter(f"target={target!r} was not recorded: give targets=[{target!r}] to the capture")
        kept = numbers.top.shape[-1]
        same = numbers.top == numbers.top[-1:, :, :1]
        ranks = np.where(same.any(axis=-1), same.argmax(axis=-1), kept)
        words = np.where(ranks == kept, f">{kept - 1}", ranks.astype(str)).astype(object)
        name = "rank 0, last layer's choice"
    return 1 / (1 + np.log2(1 + ranks)), words, name


# -- the facts --------------------------------------------------------------------------------------------------


def _view(sheet: Sheet, width: float) -> View:
    title = f"Logit lens of {sheet.request_id}: {TITLES[sheet.statistic]}"
    shape = f"{len(sheet.layers)} layers ({looked.spans(sheet.layers)})"
    where = f"after positions {looked.spans(sheet.positions)}"
    alt = f"Logit lens of request {sheet.request_id}, {shape} {where}: {SAYS[sheet.statistic]}."
    scene = sheet_scene(sheet, width)
    plot = partial(_plot, sheet, title)
    return View("lens", title, alt, _text(sheet, shape, where), scene, _table(sheet), _notes(sheet, width), plot)


def _text(sheet: Sheet, shape: str, where: str) -> str:
    lines = [f"{shape} {where}"]
    if sheet.agrees is None:
        lines.append("the model's last layer was not recorded, so agreement with it is not known")
    for i, position in enumerate(sheet.positions):
        said = sheet.tokens[int(sheet.numbers.top[-1, i, 0])]
        first = "" if sheet.agrees is None else f", first said by layer {sheet.layers[sheet.agrees[i]]}"
        lines.append(f"after {position} ({sheet.labels[position]}): layer {sheet.layers[-1]} says {said}{first}")
    if sheet.num_cached:
        lines.append(f"positions 0-{sheet.num_cached - 1}: served from cache, not computed")
    return "\n".join(lines)


def _notes(sheet: Sheet, width: float) -> tuple[str, ...]:
    notes = []
    if len(sheet.shown) < len(sheet.layers):
        notes.append(
            f"One layer in {-(-len(sheet.layers) // MAX_LAYERS)} is drawn, the last of {len(sheet.layers)} always; "
            "the table has all."
        )
    if sheet.left_out:
        which = "last" if sheet.is_windowed else "first"
        notes.append(f"The {which} {len(sheet.positions)} positions are shown, {sheet.left_out} more: positions=[...].")
    if sheet.num_cached:
        notes.append(f"Positions 0-{sheet.num_cached - 1} have no column: served from cache, not computed.")
    return looked.notes_for(notes, width)


def _table(sheet: Sheet) -> pd.DataFrame:
    """One row per recorded layer and shown position."""
    n = sheet.numbers
    layers, places = (part.ravel() for part in np.indices(n.entropy.shape))
    first = n.top[..., 0].ravel()
    table = {
        "layer": np.array(sheet.layers)[layers],
        "position": np.array(sheet.positions)[places],
        "token_id": first,
        "token": [sheet.tokens[i] for i in first.tolist()],
        "probability": np.exp(n.logprob[..., 0]).ravel(),
        "entropy_nats": n.entropy.ravel(),
        "kl_nats": n.kl.ravel(),
    }
    if sheet.statistic == "rank":
        table["rank"] = sheet.words.ravel()
    if sheet.agrees is not None:
        table["agrees_with_last"] = first == n.top[-1, places, 0]
        table["first_agreement"] = layers == sheet.agrees[places]
    return pd.DataFrame(table)


def _plot(sheet: Sheet, title: str):
    n = sheet.numbers
    hover = np.empty(n.entropy.shape, dtype=object)
    for at in np.ndindex(hover.shape):
        pairs = zip(n.top[at].tolist(), n.logprob[at].tolist(), strict=True)
        best = ", ".join(f"{sheet.tokens[i]} {np.exp(p):.3f}" for i, p in pairs)
        hover[at] = f"{best}; entropy {n.entropy[at]:.2f} nats, KL {n.kl[at]:.2f} nats"
    return heatmap(
        sheet.values,
        [str(layer) for layer in sheet.layers],
        [f"{p} {sheet.labels[p]}" for p in sheet.positions],
        title=title,
        axes=("layer", "after position"),
        unit="probability" if sheet.statistic == "token" else "shade",
        zmax=1.0,
        extra=hover,
        cell_text=sheet.words,
    )
