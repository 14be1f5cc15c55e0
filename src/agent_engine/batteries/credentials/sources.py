"""Where a secret comes from, and a text that does not print."""

from __future__ import annotations

import hmac
import os
import time
from pathlib import Path
from typing import Any, Protocol

from agent_engine.batteries.credentials.base import CredentialError

MASK = "***"
SETTLED_NS = 2_000_000_000
"""A file that has been left alone for so long is kept by its stamp; until then it is read each time."""


class Secret:
    """A text that shows ``***`` wherever it is shown. ``reveal()`` is the only way to it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode("utf-8", "replace"), other._text.encode("utf-8", "replace"))

    def __hash__(self) -> int:
        return hash(self._text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("A Secret is not pickled; keep the name of its variable or file instead")


class Source(Protocol):
    """Reads a secret each time it is needed."""

    def read(self) -> Secret:
        """The secret as it is now.

        Raises:
            CredentialError: there is none; the message names the variable or the file.
        """


class from_env:
    """A secret in an environment variable, read anew each time."""

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self) -> Secret:
        text = os.environ.get(self.name, "").strip()
        if not text:
            raise CredentialError(f"The environment variable {self.name} is not set; put the credential there")
        return Secret(text)

    def __repr__(self) -> str:
        return f"from_env({self.name!r})"


class from_file:
    """A secret in a file, read again when the file has changed (a mounted secret that is renewed)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        # One pair, replaced as a whole: threads that read at once never join one's stamp to the other's text.
        self._kept: tuple[tuple[int, ...], Secret] | None = None

    def read(self) -> Secret:
        problem = ""
        kept = self._kept
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
            if kept is None or kept[0] != stamp:
                kept = (stamp, Secret(self.path.read_text(encoding="utf-8").strip()))
                # A file that was just written may be written again without a sign of it: clocks of files are coarse.
                settled = time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > SETTLED_NS
                self._kept = kept if settled else None
        except (OSError, UnicodeDecodeError) as error:
            problem = getattr(error, "strerror", None) or "it is not UTF-8"
        if problem or kept is None:
            raise CredentialError(f"The credential file {self.path} cannot be read: {problem}")
        if not kept[1]:
            raise CredentialError(f"The credential file {self.path} is empty")
        return kept[1]

    def __repr__(self) -> str:
        return f"from_file({str(self.path)!r})"
