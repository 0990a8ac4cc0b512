"""Events to canal-json bytes, as TiCDC writes them (tiflow c7b2588, ticdc b813e76).

Byte for byte the producer's, but for two things that are random there: ``ts`` is a wall clock, and
the order inside ``mysqlType``, which here is column order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.compression import compressed
from tidesink.codecs.large_messages import LargeMessages
from tidesink.errors import EncodeError
from tidesink.events import ChangeEvent, Column, DdlEvent, Op, Row, TableSchema, Value, WatermarkEvent
from tidesink.typemap.table import mysql_type_text, mysql_type_word, row_of, sql_type_code
from tidesink.typemap.values import TextWriter, text_writer

# Bytes TiCDC counts for a record around its value.
RECORD_OVERHEAD = 36
_KEPT_OBJECTS = 64
_ONLY_HANDLE_KEY = ',"onlyHandleKey":true'

# Go's HTML-safe escaping: these four short forms, all else that is not plain as \u00XX.
_SPECIAL = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029]')
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_ESCAPED = {c: _SHORT.get(c, f"\\u{ord(c):04x}") for c in [*map(chr, range(32)), *'"\\<>&\u2028\u2029']}


def json_text(text: str) -> str:
    """A JSON string literal as Go writes it."""
    if _SPECIAL.search(text) is None:  # most texts
        return f'"{text}"'
    return '"' + _SPECIAL.sub(lambda found: _ESCAPED[found.group()], text) + '"'


@dataclass(frozen=True)
class RowWriter:
    """Writes the rows of one table schema."""

    schema: TableSchema
    full_types: bool
    # By the columns of a row: nearly all rows of a table have the same ones.
    _mysql_types: dict[tuple[str, ...], str] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def _columns(self) -> Mapping[str, tuple[str, TextWriter]]:
        return {c.name: (json_text(c.name), text_writer(c.type)) for c in self._written}

    @cached_property
    def _written(self) -> tuple[Column, ...]:
        return tuple(column for column in self.schema.columns if not column.virtual)

    @cached_property
    def pk_names(self) -> str:
        """The JSON list of the primary key's columns."""
        return "[" + ",".join(json_text(column.name) for column in self.schema.primary_key) + "]"

    @cached_property
    def handle_names(self) -> frozenset[str]:
        """The names of the handle key's columns."""
        return frozenset(column.name for column in self.schema.handle_columns)

    def texts(self, row: Row) -> dict[str, str]:
        """Each column's JSON text, in table order; a column the row has not is left out.

        Raises:
            EncodeError: a value that is none of its column's type, or a column the schema has not.
        """
        found: dict[str, str] = {}
        for name, (_, write) in self._columns.items():
            if name in row:
                found[name] = _written_value(name, row[name], write)
        if len(found) < len(row):
            self._refuse_unknown(row)
        return found

    def _refuse_unknown(self, row: Row) -> None:
        for name in row:
            if name not in self.schema.by_name:
                raise EncodeError("the event's schema has no such column", column=name)

    def object_of(self, texts: Mapping[str, str]) -> str:
        """A JSON object of columns."""
        return "{" + ",".join(f"{self._columns[name][0]}:{text}" for name, text in texts.items()) + "}"

    def sql_types(self, row: Row, names: Iterable[str]) -> str:
        """The ``sqlType`` object of these columns, for a row's values."""
        codes = self._sql_codes
        return self.object_of({n: codes[n] or self._sql_code(n, row.get(n)) for n in names})

    @cached_property
    def _sql_codes(self) -> Mapping[str, str | None]:
        """Each column's code; None where it depends on the value."""
        return {
            c.name: None if row_of(c.type).sql_type_above else str(sql_type_code(c.type, None))
            for c in self._written
        }

    def _sql_code(self, name: str, value: Value) -> str:
        return str(sql_type_code(self.schema.by_name[name].type, value))

    def mysql_types(self, names: Iterable[str]) -> str:
        """The ``mysqlType`` object of these columns.

        Raises:
            EncodeError: a full type text is asked for, and too little is known of a column.
        """
        place = tuple(names)
        known = self._mysql_types.get(place)
        if known is None:
            if len(self._mysql_types) >= _KEPT_OBJECTS:
                self._mysql_types.clear()
            known = self.object_of({name: self._type_texts(name) for name in place})
            self._mysql_types[place] = known
        return known

    def _type_texts(self, name: str) -> str:
        column_type = self.schema.by_name[name].type
        if not self.full_types:
            return json_text(mysql_type_word(column_type))
        text = mysql_type_text(column_type)
        if text is None:
            raise EncodeError(
                f"content-compatible needs the full type, and only {row_of(column_type).name} is known: "
                "give a table definition",
                column=name,
            )
        return json_text(text)


def _written_value(name: str, value: Value, write: TextWriter) -> str:
    if value is None:
        return "null"
    try:
        return json_text(write(value))
    except EncodeError as error:
        error.with_context(column=name)
        raise


class CanalJsonWriter:
    """Writes canal-json values under one set of producer options. ``clock`` gives ms since 1970.

    ``large`` keeps the rows that are too large for Kafka.
    """

    def __init__(self, options: CodecOptions, clock: Callable[[], int], large: LargeMessages) -> None:
        self._options = options
        self._clock = clock
        self._large = large

    def row(self, event: ChangeEvent, writer: RowWriter) -> bytes:
        """The message of one row change.

        Raises:
            EncodeError: an event canal-json has no message for, or one too large.
        """
        value = self._sent(self._row(event, writer, cut=_as_decoded(event)))
        if self._fits(value):
            return value
        return self._cut_down(event, writer, value)

    def _row(self, event: ChangeEvent, writer: RowWriter, *, cut: str) -> bytes:
        """A row's message; ``cut``, where it is given, is the member of ``_tidb`` that says so."""
        row, old = _images(event)
        texts = writer.texts(row)
        deletes = event.op is Op.DELETE and self._options.delete_only_output_handle_key_columns
        if (cut or deletes) and writer.handle_names:
            texts = _only(texts, writer.handle_names)
        before = "null"
        if old is not None:
            sent = self._old(event, writer.texts(old), writer.texts(row))
            before = f"[{writer.object_of(_only(sent, texts) if cut else sent)}]"
        return self._message(
            event,
            kind=event.op.value.upper(),
            pk_names=writer.pk_names,
            body=f'"sqlType":{writer.sql_types(row, texts)},"mysqlType":{writer.mysql_types(texts)},'
            f'"old":{before},"data":[{writer.object_of(texts)}]',
            cut=cut,
        )

    def _cut_down(self, event: ChangeEvent, writer: RowWriter, whole: bytes) -> bytes:
        """A row that is too large, as TiCDC sends it by ``large-message-handle-option``.

        Raises:
            EncodeError: the option is none, or the row is too large even so.
        """
        options = self._options
        if options.large_message_handle_option == "none":
            raise self._too_large(event, whole)
        if not options.enable_tidb_extension or not writer.handle_names:
            lacks = "a handle key" if options.enable_tidb_extension else "enable-tidb-extension"
            raise self._too_large(event, whole, f"; {options.large_message_handle_option} needs {lacks}")
        claims = self._large.claims if options.large_message_handle_option == "claim-check" else None
        if options.large_message_handle_option == "claim-check" and claims is None:
            raise self._too_large(event, whole, "; claim-check needs claim-check-storage-uri")
        location = claims.new_location() if claims else ""
        cut = f',"claimCheckLocation":{json_text(location)}' if claims else _ONLY_HANDLE_KEY
        value = self._sent(self._row(event, writer, cut=cut))
        if not self._fits(value):
            raise self._too_large(event, value, "; so large are the columns of its handle key")
        if claims:
            claims.store(location, whole)
        return value

    def _fits(self, value: bytes) -> bool:
        return len(value) + RECORD_OVERHEAD <= self._options.max_message_bytes

    def _too_large(self, event: ChangeEvent, value: bytes, more: str = "") -> EncodeError:
        return EncodeError(
            f"message is too large: {len(value) + RECORD_OVERHEAD} bytes, max-message-bytes is "
            f"{self._options.max_message_bytes}, large-message-handle-option is "
            f"{self._options.large_message_handle_option}{more}",
            table=str(event.table),
        )

    def _sent(self, value: bytes) -> bytes:
        return compressed(value, self._options.large_message_handle_compression)

    def _old(self, event: ChangeEvent, old: dict[str, str], new: Mapping[str, str]) -> dict[str, str]:
        sent = (event.extension or {}).get("old")
        if isinstance(sent, list):  # a decoded event says which columns there were
            return {name: text for name, text in old.items() if name in sent}
        if not (self._options.only_output_updated_columns or self._options.content_compatible):
            return old
        return {name: text for name, text in old.items() if new.get(name) != text}

    def ddl(self, event: DdlEvent) -> bytes:
        """The message of a schema change."""
        value = self._message(
            event,
            kind=event.kind,
            pk_names="null",
            is_ddl="true",
            sql=event.query,
            body='"sqlType":null,"mysqlType":null,"data":null,"old":null',
        )
        return self._sent(value)

    def watermark(self, event: WatermarkEvent) -> bytes | None:
        """The message of a watermark; None without the TiDB extension, which alone has a place for it."""
        if not self._options.enable_tidb_extension:
            return None
        value = (
            '{"id":0,"database":"","table":"","pkNames":null,"isDdl":false,"type":"TIDB_WATERMARK",'
            f'"es":{event.commit_ts >> 18},"ts":{self._clock()},"sql":"","sqlType":null,"mysqlType":null,'
            f'"data":null,"old":null,"_tidb":{{"watermarkTs":{event.commit_ts}}}}}'
        ).encode()
        return self._sent(value)

    def _message(
        self,
        event: ChangeEvent | DdlEvent,
        *,
        kind: str,
        pk_names: str,
        body: str,
        is_ddl: str = "false",
        sql: str = "",
        cut: str = "",
    ) -> bytes:
        text = (
            f'{{"id":0,"database":{json_text(event.table.schema)},"table":{json_text(event.table.name)},'
            f'"pkNames":{pk_names},"isDdl":{is_ddl},"type":{json_text(kind)},"es":{_es(event)},'
            f'"ts":{self._clock()},"sql":{json_text(sql)},{body}{self._extension(event, cut)}}}'
        )
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise EncodeError("a text holds half a surrogate pair, which is no character") from error

    def _extension(self, event: ChangeEvent | DdlEvent, cut: str) -> str:
        if not self._options.enable_tidb_extension:
            return ""
        if event.commit_ts is None:
            raise EncodeError("enable-tidb-extension needs commit_ts, and the event has none")
        row_key = ""
        if self._options.output_row_key and isinstance(event, ChangeEvent):
            row_key = f',"rowkey":{json_text(_row_key(event))}'
        return f',"_tidb":{{"commitTs":{event.commit_ts}{cut}{row_key}}}'


def _only(texts: Mapping[str, str], names: Container[str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if name in names}


def _as_decoded(event: ChangeEvent) -> str:
    """A delete that came with its handle key alone, and was not looked up, goes out as it came."""
    members = (event.extension or {}).get("_tidb")
    cut = event.op is Op.DELETE and isinstance(members, Mapping) and members.get("onlyHandleKey") is True
    return _ONLY_HANDLE_KEY if cut else ""


def _row_key(event: ChangeEvent) -> str:
    members = (event.extension or {}).get("_tidb")
    key = members.get("rowkey") if isinstance(members, Mapping) else None
    if not isinstance(key, str):
        raise EncodeError("output-row-key needs extension._tidb.rowkey, and the event has none")
    return key


def _es(event: ChangeEvent | DdlEvent) -> int:
    es = (event.extension or {}).get("es")
    if isinstance(es, int):
        return es
    if event.commit_ts is None:
        raise EncodeError(
            "canal-json needs the commit time: the event has neither commit_ts nor extension.es"
        )
    return event.commit_ts >> 18


def _images(event: ChangeEvent) -> tuple[Row, Row | None]:
    """The row for ``data`` and the one for ``old``."""
    row = event.before if event.op is Op.DELETE else event.after
    if event.op not in (Op.INSERT, Op.UPDATE, Op.DELETE):
        raise EncodeError(f"canal-json has no message for {event.op.value!r}", table=str(event.table))
    if row is None or (event.op is Op.UPDATE and event.before is None):
        raise EncodeError(f"an image of the {event.op.value} is missing", table=str(event.table))
    return row, event.before if event.op is Op.UPDATE else None


def merged_names(*rows: Row | None) -> Sequence[str]:
    """The columns of some rows, each once."""
    return tuple(dict.fromkeys(name for row in rows if row is not None for name in row))
