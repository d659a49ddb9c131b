"""Which panels there are, so that running a cell again replaces those it made before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from IPython import get_ipython

_NAME = "_llmlab_panels"


class Closable(Protocol):
    """What a panel must be able to do to be replaced."""

    def close(self) -> None:
        """Close all comms; more than once does no harm."""


@dataclass(slots=True)
class Registry:
    """Panels by their key, and by the cell that made them: ``cells`` has each cell's last run and its panels."""

    keys: dict[str, Closable] = field(default_factory=dict)
    cells: dict[str, tuple[str, list[Closable]]] = field(default_factory=dict)

    def enter(self, panel: Closable, key: str, cell: str | None = None, run: str = "") -> None:
        """Close what has the same key, and what an earlier ``run`` of ``cell`` made; then remember ``panel``."""
        self.drop(self.keys.get(key))
        self.keys[key] = panel
        if cell is None:
            return
        last, panels = self.cells.get(cell, (run, []))
        if last != run:
            for old in list(panels):
                self.drop(old)
            panels = []
        self.cells[cell] = run, [*panels, panel]

    def drop(self, panel: Closable | None) -> None:
        """Close and forget ``panel``."""
        if panel is None:
            return
        self.forget(panel)
        panel.close()

    def forget(self, panel: Closable) -> None:
        """``panel`` is closed."""
        for key in [key for key, known in self.keys.items() if known is panel]:
            del self.keys[key]
        for cell, (run, panels) in list(self.cells.items()):
            left = [known for known in panels if known is not panel]
            if left:
                self.cells[cell] = run, left
            else:
                del self.cells[cell]


def registry_for(owner: Any) -> Registry:
    """The registry of the running notebook; outside of one that of ``owner``."""
    home = get_ipython() or owner
    return vars(home).setdefault(_NAME, Registry())


def running_cell() -> tuple[str | None, str]:
    """Id of the cell being run and of this run of it, as the front end names them; ``None`` where it does not."""
    shell = get_ipython()
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    cell = (parent.get("metadata") or {}).get("cellId")
    return cell, (parent.get("header") or {}).get("msg_id", "")
