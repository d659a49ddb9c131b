"""What is sent to the page as code."""

from __future__ import annotations

import re

from llmlab.widgets.canvas import module, static


def test_no_code_knows_an_address():
    for text in (module(), static("loader.js"), static("panel.css")):
        assert re.search(r"(https?:)?//[a-z0-9]+\.[a-z]", text, re.IGNORECASE) is None
        assert "http" not in text
        assert "@import" not in text
        assert "url(" not in text


def test_text_never_becomes_markup():
    for banned in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert banned not in module()


def test_the_part_sent_with_every_display_is_small():
    assert len(static("loader.js")) < 1_500
    assert len(module()) < 40_000


def test_no_frame_or_port_is_opened():
    for banned in ("iframe", "localhost", "127.0.0.1", "WebSocket", "fetch(", "XMLHttpRequest"):
        assert banned not in module() + static("loader.js")
