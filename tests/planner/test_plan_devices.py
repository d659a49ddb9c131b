"""Devices and links: data sheets by name, and this machine measured."""

from __future__ import annotations

import pytest

from llmlab.errors import InvalidParameter
from llmlab.planner.devices import ALIASES, DEVICES, device
from llmlab.planner.links import LINKS, link
from llmlab.planner.this_machine import this_machine


def test_every_device_names_its_source_and_known_links():
    for each in DEVICES.values():
        assert each.source
        assert not each.is_measured
        assert set(each.links) <= set(LINKS)
        assert each.flops["bf16"] > each.flops["fp32"]


def test_names_are_found_in_any_spelling():
    assert device("H100") is device("h100-sxm") is DEVICES["h100"]
    assert device("RTX 4090") is DEVICES["rtx-4090"]
    assert set(ALIASES.values()) <= set(DEVICES)


def test_a_format_without_units_is_computed_in_the_next_wider_one():
    assert device("a100").peak("fp8") == device("a100").peak("bf16") == 312e12
    assert device("h100").peak("fp4") == device("h100").peak("fp8")
    with pytest.raises(InvalidParameter, match="fp32"):
        device("h100").peak("fp64")


def test_ridges():
    """Operations per byte at which reading and computing take equally long, as lab 10 has them."""
    assert {name: round(device(name).ridge()) for name in ("a100", "h100", "h200")} == {
        "a100": 153, "h100": 295, "h200": 206,
    }  # fmt: skip


def test_a_link_takes_its_bytes_and_its_latency():
    over = link("400gbps")
    assert over.time_s(50e9) == pytest.approx(1, abs=1e-4)
    assert over.time_s(0, messages=3) == 3 * over.latency_s


@pytest.mark.parametrize("find", [device, link])
def test_unknown_names_are_refused_with_those_that_are_known(find):
    with pytest.raises(InvalidParameter, match=r"h100|nvlink4"):
        find("abacus")


def test_this_machine_is_measured():
    here = this_machine(repeats=1)
    assert here.is_measured
    assert here.source.startswith("measured here")
    assert 1e8 < here.bytes_per_s < 1e13
    assert 1e8 < here.peak("fp32") < 1e16
    assert here.memory_bytes > 2**30
