"""From an address to a store."""

from __future__ import annotations

from agent_engine.records.settings import RecordSettings, file_of, shown_start, split_address
from agent_engine.records.writer import StoreJournal

ADDRESSES = "none, memory, jsonl:PATH, sqlite:PATH, postgresql://USER@HOST/DATABASE, otel"


def open_store_journal(address: str, settings: RecordSettings | None = None) -> StoreJournal:
    """The journal that writes to a JSON lines file, a SQLite file or a PostgreSQL database.

    Raises:
        ValueError: an unknown address or option.
        RecordsError: an audit log without its key.
    """
    base, chosen = split_address(address, settings)
    chosen.audit_key()
    if base.startswith("jsonl:") and len(base) > 6:
        path = file_of(base)

        from agent_engine.records.jsonlsink import JsonlSink

        return StoreJournal(lambda: JsonlSink(path, chosen), chosen, base)
    if base.startswith(("sqlite:", "postgresql:", "postgresql+psycopg:", "postgres:")) and base != "sqlite:":
        from agent_engine.records.connect import shown
        from agent_engine.records.sqlsink import SqlSink

        return StoreJournal(lambda: SqlSink(base, chosen), chosen, shown(base))
    raise ValueError(f"{shown_start(base)!r} is no store of records; write one of {ADDRESSES}.")
