from __future__ import annotations

import io

import pytest
from rich.console import Console

from llmlab.commands.terminal import TextStream, escape_controls, two_columns


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\rb\x08\x07\x00", "a\\x0db\\x08\\x07\\x00"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("abc\u202edef\u2066", "abc\\u202edef\\u2066"),
        ("tab\tline\n", "tab\tline\n"),
        ("é 雪 🙂 \u200d", "é 雪 🙂 \u200d"),
    ],
)
def test_control_characters_are_spelled_out_and_text_is_kept(text, shown):
    assert escape_controls(text) == shown


def test_terminal_gets_escaped_text_and_a_file_gets_it_unchanged():
    terminal, file = Terminal(), io.StringIO()
    for out in (terminal, file):
        TextStream(out).write("\x1b[31mred\x1b[0m")
    assert terminal.getvalue() == "\\x1b[31mred\\x1b[0m"
    assert file.getvalue() == "\x1b[31mred\x1b[0m"


def test_every_piece_is_flushed():
    raw = io.BytesIO()
    stream = TextStream(io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8"))
    stream.write("a")
    assert raw.getvalue() == b"a"
    stream.write("b")
    assert raw.getvalue() == b"ab"


def test_characters_the_encoding_lacks_are_spelled_out():
    raw = io.BytesIO()
    stream = TextStream(io.TextIOWrapper(raw, encoding="ascii"))
    stream.write("a雪")
    assert raw.getvalue() == b"a\\u96ea"


@pytest.mark.parametrize(("pieces", "text"), [(["a"], "a\n"), (["a", "b\n"], "ab\n"), ([], ""), (["\n"], "\n")])
def test_line_is_ended_once(pieces, text):
    out = io.StringIO()
    stream = TextStream(out)
    for piece in pieces:
        stream.write(piece)
    stream.end_line()
    assert out.getvalue() == text


def test_table_cells_are_text_not_markup():
    out = io.StringIO()
    Console(file=out, width=60).print(two_columns({"prompt": "[bold]x[/] \x1b[2J [/nothing]"}))
    assert "[bold]x[/] \\x1b[2J [/nothing]" in out.getvalue()
