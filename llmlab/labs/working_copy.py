"""A learner's folder of notebooks: filled and updated, never overwritten where somebody worked."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from llmlab.errors import LabError
from llmlab.labs.shipped import Notebook

RECORD = ".llmlab-labs.json"  # name of a notebook -> digest of the shipped one it was copied from

NEW, SAME, UPDATED, CHANGED = "new", "up to date", "updated", "kept, you changed it"


def digest(content: bytes) -> str:
    """A hash of what a learner can change on purpose: the cells and their sources; outputs and metadata do not count.

    Bytes that are no notebook are hashed as they are.
    """
    try:
        cells = [[cell["cell_type"], "".join(cell["source"])] for cell in json.loads(content)["cells"]]
    except (ValueError, KeyError, TypeError):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


@dataclass(frozen=True)
class WorkingCopy:
    """The folder that notebooks are copied to; whatever else lies in it is left alone."""

    folder: Path

    def path(self, notebook: Notebook) -> Path:
        """Where the notebook's copy is, or would be."""
        return self.folder / notebook.name

    def state(self, notebook: Notebook) -> str:
        """``new``, ``up to date``, ``updated`` (an untouched older copy would be) or ``kept, you changed it``."""
        path = self.path(notebook)
        if not os.path.lexists(path):
            return NEW
        have = self._digest_of(path)
        if have == digest(notebook.content):
            return SAME
        return UPDATED if have is not None and have == self._record().get(notebook.name) else CHANGED

    def update(self, notebooks: tuple[Notebook, ...]) -> dict[str, str]:
        """Copy what is missing and replace untouched older copies; returns the state of each by its name.

        Raises ``LabError`` when the folder cannot be written.
        """
        states = {notebook.name: self.state(notebook) for notebook in notebooks}
        try:
            self._write([notebook for notebook in notebooks if states[notebook.name] != CHANGED], states)
        except OSError as error:
            raise LabError(f"the notebooks cannot be copied to {self.folder}: {error}; choose another --dir") from error
        return states

    def reset(self, notebook: Notebook) -> Path | None:
        """Put the shipped notebook back; returns where the learner's own was kept, ``None`` when there was none.

        Raises ``LabError`` when the folder cannot be written.
        """
        path = self.path(notebook)
        try:
            kept = self._set_aside(path) if os.path.lexists(path) else None
        except OSError as error:
            raise LabError(f"{path} cannot be moved aside: {error}") from error
        self.update((notebook,))
        return kept

    def _write(self, notebooks: list[Notebook], states: dict[str, str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        record = self._record()
        for notebook in notebooks:
            if states[notebook.name] != SAME:
                _replace(self.path(notebook), notebook.content)
            record[notebook.name] = digest(notebook.content)
        _replace(self.folder / RECORD, (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())

    def _record(self) -> dict[str, str]:
        """What was copied here; nothing when the file is missing or damaged, so that every copy counts as changed."""
        try:
            record = json.loads((self.folder / RECORD).read_bytes())
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}

    def _digest_of(self, path: Path) -> str | None:
        """``None`` for a copy that is a link or cannot be read: it is not ours to replace."""
        try:
            return None if path.is_symlink() else digest(path.read_bytes())
        except OSError:
            return None

    @staticmethod
    def _set_aside(path: Path) -> Path:
        number = 1
        while os.path.lexists(backup := path.with_name(f"{path.stem}.backup-{number}{path.suffix}")):
            number += 1
        return path.rename(backup)


def _replace(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
