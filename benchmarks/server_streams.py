"""200 streams at a time over real sockets, offline model, hooks and records on: how many are answered, and none lost.

python benchmarks/server_streams.py [SECONDS] [STREAMS]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.server.kit import office_hooks, served

from agent_engine.models.offline import OfflineModel
from agent_engine.records.query import RecordReader
from agent_engine.server.settings import ServerSettings


async def one_after_the_other(http: httpx2.AsyncClient, name: str, until: float, lost: list[str]) -> int:
    done = 0
    while time.monotonic() < until:
        number = f"{name}-{done}"
        try:
            body = {"message": f"search for {number}", "session_id": number}
            async with http.stream("POST", "/stream", json=body) as answer:
                text = "".join([line async for line in answer.aiter_lines()])
            if "event: final" not in text or number not in text:
                lost.append(f"{number}: {text[:200]}")
        except httpx2.HTTPError as error:
            lost.append(f"{number}: {type(error).__name__}")
        done += 1
    return done


async def main(url: str, seconds: float, streams: int) -> tuple[int, list[str]]:
    lost: list[str] = []
    limits = httpx2.Limits(max_connections=streams, max_keepalive_connections=streams)
    async with httpx2.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        until = time.monotonic() + seconds
        works = (one_after_the_other(http, f"s{number}", until, lost) for number in range(streams))
        counts = await asyncio.gather(*works)
    return sum(counts), lost


if __name__ == "__main__":
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    streams = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    with tempfile.TemporaryDirectory() as folder:
        settings = ServerSettings(port=0, max_runs=streams + 10, drain_s=20)
        with served(Path(folder), OfflineModel(), hooks=office_hooks(), settings=settings, capture="") as server:
            began = time.monotonic()
            done, lost = asyncio.run(main(server.url, seconds, streams))
            took = time.monotonic() - began
        with RecordReader.open(f"sqlite:{Path(folder) / 'records.db'}") as reader:
            recorded, still_open = reader.counts()
    print(f"{done} streams in {took:.0f} s, {streams} at a time ({done / took:.0f} a second); lost {len(lost)}")
    print(f"recorded {recorded} runs, {still_open} open")
    print(*lost[:5], sep="\n")
    raise SystemExit(0 if not lost and recorded == done and not still_open else 1)
