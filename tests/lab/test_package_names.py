"""What ``llmlab`` offers by name, and what a wrong name among the options of its calls is answered with."""

from __future__ import annotations

import subprocess
import sys

import pytest

import llmlab
from llmlab.errors import InvalidParameter

LAZY = """
import sys, llmlab
assert "torch" not in sys.modules
assert len(llmlab.claims.claims()) > 60
assert llmlab.client.__name__ == "llmlab.client"
assert llmlab.errors.LabError and llmlab.probes.Capture
"""


def test_parts_are_there_without_an_import_of_their_own():
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_lists_what_it_offers_and_nothing_else():
    assert dir(llmlab) == sorted([*llmlab.__all__, "claims", "client", "errors", "probes"])
    assert all(hasattr(llmlab, name) for name in dir(llmlab))
    with pytest.raises(AttributeError, match="no attribute 'claim'"):
        _ = llmlab.claim


@pytest.fixture(scope="module")
def lab():
    with llmlab.open("mock") as lab:
        yield lab


def test_unknown_options_are_named_with_what_is_known(lab):
    with pytest.raises(InvalidParameter, match=r"'bogus' of a server; known are host, port"):
        lab.serve(bogus=1)
    with pytest.raises(InvalidParameter, match="did you mean max_open"):
        lab.serve(max_opened=1)
    with pytest.raises(InvalidParameter, match=r"'bogus' of a client; known are api_key"):
        lab.client(bogus=1)
    with pytest.raises(InvalidParameter, match="did you mean timeouts"):
        llmlab.connect("http://127.0.0.1:1", timeout=1)


def test_an_address_is_no_server_of_the_lab(lab):
    with pytest.raises(InvalidParameter, match=r"of type str.*llmlab\.connect\(url\)"):
        lab.client(server="http://127.0.0.1:8000")


@pytest.mark.parametrize("call", ["send", "stream", "count_tokens"])
def test_a_request_that_is_no_body_is_answered_with_one(lab, call):
    with pytest.raises(InvalidParameter, match=r"of type str: give the body as a dict.*max_tokens"):
        getattr(lab.client(), call)("hi")
