"""A store at the other end of a network: a proxy on loopback whose connections carry only so much each."""

import asyncio
import contextlib
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

CHUNK = 256 << 10


@contextlib.contextmanager
def far(host: str, port: int, bytes_per_second: float) -> Iterator[int]:
    """The port of a way to that store that is so slow, in each direction of each connection."""
    here, there = multiprocessing.Pipe()
    proxy = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, host, port, bytes_per_second))
    proxy.start()
    try:
        yield here.recv()
    finally:
        proxy.terminate()
        proxy.join()


def _serve(ready: Connection, host: str, port: int, bytes_per_second: float) -> None:
    async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        free_at = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while data := await source.read(CHUNK):
                free_at = max(free_at, time.monotonic()) + len(data) / bytes_per_second
                await asyncio.sleep(max(0.0, free_at - time.monotonic()))
                target.write(data)
                await target.drain()
        target.close()

    async def connected(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        there_source, there_target = await asyncio.open_connection(host, port, limit=CHUNK)
        await asyncio.gather(carry(source, there_target), carry(there_source, target))

    async def serve() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=CHUNK)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())
