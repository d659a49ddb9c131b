"""Local tools do what they say, refuse the rest, and never raise for what a model wrote."""

from __future__ import annotations

import ast
import os
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import ScriptedServer, reply

from llmlab.client.calculator import calculate
from llmlab.client.compaction import ReadTracker
from llmlab.client.file_tools import Root
from llmlab.client.tool import LocalTool, ToolFailed
from llmlab.client.tools import Toolbox, local_tools
from llmlab.errors import InvalidParameter


def use(name: str, _id: str = "1", **arguments) -> dict:
    return {"type": "tool_use", "id": _id, "name": name, "input": arguments}


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("héllo")
    (root / "sub" / "b.txt").write_text("b")
    (tmp_path / "secret.txt").write_text("secret")
    os.symlink(tmp_path / "secret.txt", root / "link.txt")
    os.symlink(tmp_path, root / "up")
    os.symlink(root / "a.txt", root / "inside.txt")
    return root


# -- calculator ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [("1+2*3", 7), ("-(2**10)", -1024), ("7//2 + 7%2", 4), (" 1/4 ", 0.25), ("2**-1", 0.5), ("1_000.5", 1000.5)],
)
def test_arithmetic(expression, value):
    assert calculate(expression) == value


@given(
    st.recursive(
        st.integers(0, 99).map(str),
        lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
            lambda parts: f"({parts[0]}{parts[1]}{parts[2]})"
        ),
        max_leaves=20,
    )
)
def test_it_agrees_with_exact_fractions(expression):
    def exact(node):
        if isinstance(node, ast.Constant):
            return Fraction(node.value)
        left, right = exact(node.left), exact(node.right)
        return {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}[type(node.op)]

    assert calculate(expression) == exact(ast.parse(expression, mode="eval").body)


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "__import__('os')",
            "a",
            "f(1)",
            "'x'*9",
            "True+1",
            "[1]",
            "1 if 1 else 2",
            "1j",
            "1<2",
            "1&2",
            "~1",
            "not 1",
        ),
        *("", "1+", "1\n2", "\0", "(" * 400 + "1" + ")" * 400, "-" * 499 + "1", "1" * 501),
        *("9**9**9", "2**1001", "(2**999)**999", "10**1000*10**1000", "(-8)**0.5", "1e300*1e300 % 0", "1/0", "0**-1"),
        "10.0**999",
    ],
)
def test_anything_else_is_refused_at_once(expression):
    with pytest.raises(ToolFailed):
        calculate(expression)


def test_a_large_power_is_refused_before_it_is_computed():
    with pytest.raises(ToolFailed, match="would have more than"):
        calculate("(2**999)**999")


# -- files ---------------------------------------------------------------------------------------------------


def test_files_and_folders_under_the_root_are_readable(project):
    root = Root(project)
    assert root.read_file("a.txt") == root.read_file("inside.txt") == root.read_file("sub/../a.txt") == "héllo"
    assert root.list_folder().split("\n") == ["a.txt", "inside.txt", "link.txt", "sub/", "up/"]
    assert root.list_folder("sub") == "b.txt"


@pytest.mark.parametrize("path", ["../secret.txt", "link.txt", "up/secret.txt", "sub/../../secret.txt"])
def test_nothing_outside_is_readable(project, path):
    with pytest.raises(ToolFailed, match="is outside the folder"):
        Root(project).read_file(path)


@pytest.mark.parametrize("path", ["\0", "x" * 5000, "missing", "a.txt/b"])
def test_a_name_that_leads_nowhere_is_an_answer(project, path):
    with pytest.raises(ToolFailed, match="there is no"):
        Root(project).read_file(path)


def test_absolute_paths_and_links_to_folders_lead_nowhere(project, tmp_path):
    for path in (str(tmp_path / "secret.txt"), "/etc/passwd"):
        with pytest.raises(ToolFailed, match="outside"):
            Root(project).read_file(path)
    with pytest.raises(ToolFailed, match="outside"):
        Root(project).list_folder("up")


def test_long_files_are_cut_and_binary_ones_refused(project):
    root = Root(project, max_bytes=2)
    assert root.read_file("a.txt") == "h\n[cut after 2 bytes]"
    for data in (b"\xff\xfe", b"a\0b"):
        (project / "binary").write_bytes(data)
        with pytest.raises(ToolFailed, match="not"):
            Root(project).read_file("binary")


def test_a_folder_or_a_pipe_is_not_read(project):
    os.mkfifo(project / "pipe")
    for name in ("sub", "pipe"):
        with pytest.raises(ToolFailed, match="not a plain file"):
            Root(project).read_file(name)


def test_the_root_must_be_a_folder(project):
    with pytest.raises(InvalidParameter, match="not a folder"):
        Root(project / "a.txt")


# -- toolbox -------------------------------------------------------------------------------------------------


def test_a_result_names_its_tool_use(project):
    box = Toolbox(local_tools(project))
    assert box.run(use("calculator", "9", expression="6*7")) == {
        "type": "tool_result",
        "tool_use_id": "9",
        "content": "42",
    }
    assert box.names == ("calculator", "read_file", "list_folder")
    assert Toolbox(local_tools()).names == ("calculator",)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (use("nope"), "there is no tool 'nope'; there are: calculator, read_file, list_folder"),
        (use("calculator"), "'expression' is a required property"),
        (use("calculator", expression=3), "invalid arguments at expression"),
        (use("calculator", expression="1", more="x"), "'more' was unexpected"),
        (use("calculator", expression="1/0"), "division by zero"),
        (use("read_file", path="../secret.txt"), "outside the folder"),
        ({"type": "tool_use", "id": "1", "name": "calculator", "input": "{"}, "incomplete"),
        (use("calculator", expression="1") | {"partial_json": '{"expr'}, "incomplete"),
        ({"type": "tool_use"}, "there is no tool None"),
    ],
)
def test_every_failure_is_an_error_result(project, block, message):
    result = Toolbox(local_tools(project)).run(block)
    assert result["is_error"] is True
    assert message in result["content"]


def counting(calls: list) -> LocalTool:
    def run(**arguments) -> str:
        calls.append(arguments)
        raise RuntimeError("a bug")

    return LocalTool("t", "", {"type": "object", "properties": {"n": {"type": "integer"}}}, run)


def test_a_tool_does_not_run_on_arguments_that_are_wrong_or_incomplete():
    calls: list = []
    box = Toolbox([counting(calls)])
    box.run(use("t", n="x"))
    box.run(use("t", n=1) | {"partial_json": ""})
    assert calls == []


def test_a_schema_that_points_elsewhere_is_not_fetched():
    with ScriptedServer(reply(200, {"type": "integer"})) as server:
        schema = {"type": "object", "properties": {"n": {"$ref": f"{server.url}/schema"}}}
        box = Toolbox([LocalTool("t", "", schema, lambda n: "ran")])
        assert box.run(use("t", n=1))["content"].startswith("the arguments could not be checked")
    assert server.requests == []


def test_a_bug_in_a_tool_does_not_end_the_conversation():
    assert Toolbox([counting([])]).run(use("t", n=1))["content"] == "t failed: RuntimeError: a bug"


def test_long_results_are_cut():
    box = Toolbox([LocalTool("t", "", {"type": "object"}, lambda: "x" * 200_000)])
    assert len(box.run(use("t"))["content"]) < 100_100


def test_two_tools_of_one_name_and_a_schema_that_is_none_are_refused():
    with pytest.raises(InvalidParameter, match="two tools"):
        Toolbox([*local_tools(), *local_tools()])
    with pytest.raises(InvalidParameter, match="not a JSON Schema"):
        Toolbox([LocalTool("t", "", {"type": "nonsense"}, str)])


def test_reads_are_noted_under_one_name(project):
    reads = ReadTracker()
    box = Toolbox(local_tools(project, reads))
    for path in ("a.txt", "./a.txt", "sub/../a.txt", "missing"):
        box.run(use("read_file", path=path))
    assert [(read.path, read.again) for read in reads.log] == [("a.txt", False), ("a.txt", True), ("a.txt", True)]


def test_texts_in_the_arguments_of_local_tools_are_bounded(tmp_path):
    for tool in local_tools(tmp_path):
        assert {field["maxLength"] for field in tool.schema["properties"].values()} == {120}
    use = {"type": "tool_use", "id": "1", "name": "calculator", "input": {"expression": "1" * 121}}
    assert "too long" in Toolbox(local_tools()).run(use)["content"]
