"""The HTTP client that the SDK is given: it makes a request of what the SDK says, and hands it to the door."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2


class DoorClient(httpx2.AsyncClient):
    """A client with nothing of its own between the SDK and the door.

    It keeps no cookies, follows no redirect, knows no authentication flow, reads no environment, and logs no address.

    Args:
        door: the transport that everything goes through.
        endpoint: the one address that requests are made for.
        timeout: for connecting, reading and writing.
    """

    def __init__(self, door: httpx2.AsyncBaseTransport, endpoint: str, timeout: httpx2.Timeout) -> None:
        super().__init__(transport=door, timeout=timeout, trust_env=False)
        self._door = door
        self._endpoint = (endpoint, httpx2.URL(endpoint))
        self._timeouts = {"timeout": timeout.as_dict()}
        self._own = [(name.lower(), value) for name, value in self.headers.raw]

    def build_request(
        self, method: str, url: httpx2.URL | str, *, json: Any = None, headers: Any = None, **options: Any
    ) -> httpx2.Request:
        """A request with a JSON body, or none, is made here; the SDK makes no others, or the base class would."""
        if any(options.get(name) is not None for name in ("content", "data", "files", "params", "cookies")):
            return super().build_request(method, url, json=json, headers=headers, **options)
        given = headers.raw if isinstance(headers, httpx2.Headers) else _raw(headers or {})
        names = {name.lower() for name, _ in given}
        own = [pair for pair in self._own if pair[0] not in names]
        text, parsed = self._endpoint
        return httpx2.Request(
            method,
            parsed if url == text else url,
            headers=[*own, *given],
            json=json,
            extensions=self._timeouts,
        )

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Hand a request to the door, which never raises for what goes wrong there."""
        response = await self._door.handle_async_request(request)
        response.request = request
        if not stream:
            try:
                await response.aread()
            except BaseException:
                await response.aclose()
                raise
        return response


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
