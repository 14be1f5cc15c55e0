"""Ids in addresses: what somebody else chose may hold anything, so an id is always the last part, and taken whole."""

from __future__ import annotations

from starlette.convertors import Convertor, register_url_convertor


class WholeConvertor(Convertor[str]):
    """Everything to the end, slashes and line breaks too. Starlette's own ``path`` stops at a line break."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("whole", WholeConvertor())
RUN = "{run_id:whole}"
RECORD = "{record_id:whole}"
