"""A server beside a running event loop, as in a notebook's cell."""

from __future__ import annotations

import asyncio

import httpx2

import llmlab


async def test_servers_start_from_a_running_loop_again_and_again():
    assert asyncio.get_running_loop().is_running()
    with llmlab.open("mock") as lab:
        first, second = lab.serve(), lab.serve()
        assert first.url != second.url
        for server in (first, second):
            assert httpx2.get(f"{server.url}/health").status_code == 200
        first.close()
        with lab.serve() as third:
            assert httpx2.get(f"{third.url}/health").status_code == 200
