"""Telling Jupyter that notebooks which llmlab wrote may show their stored pictures."""

from __future__ import annotations

from collections.abc import Iterable

from llmlab.labs.shipped import Notebook


def trust(notebooks: Iterable[Notebook]) -> None:
    """Sign shipped notebooks, as ``jupyter trust`` does; JupyterLab shows the SVG of no other before it has run.

    A signature is of the content, so it is not one for what else a file of that name may hold. Does nothing where
    Jupyter's packages are missing.
    """
    try:
        import nbformat
        from nbformat.sign import NotebookNotary
    except ImportError:
        return
    notary = NotebookNotary()
    for notebook in notebooks:
        notary.sign(nbformat.reads(notebook.content.decode(), as_version=4))
    notary.store.close()
