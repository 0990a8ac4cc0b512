"""Columns that tables of many tests begin with."""

from __future__ import annotations

from typing import Final

from tidesink.events import Column, ColumnType

ID: Final = Column("id", ColumnType("bigint"), nullable=False, handle=True, primary_key=True)
