"""A prediction: asked before a cell is run, compared with what was measured afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmlab.errors import InvalidParameter

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def predict(question: str, options: Sequence[Any]) -> Prediction:
    """Ask before you measure: in a notebook the options are radio buttons; elsewhere use :meth:`Prediction.choose`.

    Raises ``InvalidParameter`` for fewer than two options, or two that read the same.
    """
    texts = tuple(str(option) for option in options)
    if len(texts) < 2 or len(set(texts)) < len(texts):
        raise InvalidParameter(f"options={options!r}: give at least two, all different")
    return Prediction(question, texts)


class Prediction:
    """A question with options; ``choice`` is the one chosen, ``None`` before."""

    def __init__(self, question: str, options: tuple[str, ...]) -> None:
        self.question, self.options = question, options
        self.choice: str | None = None
        self._widget: Any = None

    def choose(self, option: Any) -> Prediction:
        """Record a choice, as a click does. Raises ``InvalidParameter`` for what is no option."""
        if str(option) not in self.options:
            raise InvalidParameter(f"{option!r} is no option: choose one of {', '.join(self.options)}")
        self.choice = str(option)
        return self

    def reveal(self, measured: Any, how: str = "Measured") -> None:
        """Print what was predicted beside what was measured, or found out as ``how`` says."""
        print(self._compared(str(measured), how))

    def _compared(self, measured: str, how: str) -> str:
        if self.choice is None:
            return f"{how}: {measured}. You made no prediction; making one first is what makes the answer stick."
        if self.choice == measured:
            return f"{how}: {measured}, as you said."
        return f"{how}: {measured}. You said {self.choice}: what did you assume that is not so?"

    def __repr__(self) -> str:
        marks = ("x" if option == self.choice else " " for option in self.options)
        rows = [f"  ({mark}) {option}" for mark, option in zip(marks, self.options, strict=True)]
        return "\n".join([f"Predict: {self.question}", *rows])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Radio buttons where ipywidgets is installed; the same question as text everywhere."""
        try:
            view = self._buttons()._repr_mimebundle_()
        except ImportError:
            view = {}
        return {key: view[key] for key in (WIDGET_VIEW,) if key in view} | {"text/plain": repr(self)}

    def _buttons(self) -> Any:
        if self._widget is None:
            import ipywidgets

            buttons = ipywidgets.RadioButtons(
                options=self.options, value=self.choice, layout=ipywidgets.Layout(width="max-content")
            )
            buttons.observe(self._chosen, names="value")
            self._widget = ipywidgets.VBox([ipywidgets.Label(f"Predict: {self.question}"), buttons])
        return self._widget

    def _chosen(self, change: Any) -> None:
        self.choice = change["new"]
