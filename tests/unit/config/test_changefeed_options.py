"""Options of a changefeed beyond the vectors: where the two producers differ, and how values are read."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import pytest

from tidesink.codecs.options import Producer
from tidesink.config.changefeed import pipeline_draft, read_changefeed, read_toml
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError

CANAL = "kafka://k:9092/t?protocol=canal-json"
AVRO = "kafka://k:9092/t?protocol=avro&schema-registry=http://r:8081"
GLUE = "[sink.kafka-config.glue-schema-registry-config]\nregion='r'\nregistry-name='n'"
CORRECT = "integrity-check-level='correctness'\n"


class Case(NamedTuple):
    """A changefeed of which no config can be made, and the reason."""

    uri: str
    toml: str
    says: str
    producer: Producer = "classic"


@pytest.mark.parametrize(
    "case",
    [
        Case(f"{CANAL}&enable-tidb-extension=yes", "", "enable-tidb-extension: 'yes' .*Use true or false"),
        Case(f"{CANAL}&enable-tidb-extension=tRUE", "", "Use true or false"),
        Case(CANAL, "[sink]\ncontent-compatible='true'", "sink.content-compatible: give true or false"),
        Case(CANAL, "[sink]\nschema-registry=1", "sink.schema-registry: give a text"),
        Case(f"{CANAL}&output-row-key=maybe", "", "true or false", "new"),
        Case("kafka://k:9092/t?protocol=avro", "", "Add schema-registry="),
        Case("kafka://k:9092/t?protocol=avro", GLUE, r"not AWS Glue"),
        Case("kafka://k:9092/t", "", "The changefeed has no protocol"),
        Case("kafka://k:9092/t?protocol=debezum", "", "did you mean debezium-"),
        Case(AVRO, "[sink]\ndispatchers=[{matcher=['a.*'],topic='{table}'}]", "one subject"),
        Case(
            AVRO,
            "[sink]\ndispatchers=[{matcher=['a']}]",
            r"dispatchers\[0\]: Matcher 'a' is not valid: .*Correct this rule",
        ),
        Case(
            "kafka://k/t?protocol=debezium-avro&schema-registry=http://r",
            "[sink]\ndispatchers=[{matcher=['a.*'],topic='{schema}'}]",
            "one subject",
            "new",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_way_out(case: Case) -> None:
    with pytest.raises(ConfigError, match=case.says):
        pipeline_draft(read_changefeed(case.uri, read_toml(case.toml), producer=case.producer))


def test_options_that_only_the_new_architecture_has() -> None:
    uri = f"{AVRO}&avro-include-before-value=true&enable-tidb-extension=1"
    new = read_changefeed(uri, producer="new").options
    assert (new["avro-include-before-value"], new["output-row-key"]) == (True, False)
    assert "avro-include-before-value" not in read_changefeed(uri).options
    toml = read_toml("[sink.kafka-config.codec-config]\noutput-row-key=true")
    assert read_changefeed(CANAL, toml, producer="new").options["output-row-key"]


def test_watermarks_of_debezium_avro_are_for_the_new_architecture() -> None:
    uri = "kafka://k/t?protocol=debezium-avro&schema-registry=http://r&enable-tidb-extension=1&avro-enable-watermark=1"
    assert read_changefeed(uri, producer="new").options["avro-enable-watermark"]
    assert not read_changefeed(uri).options["avro-enable-watermark"]


@pytest.mark.parametrize("producer", ["classic", "new"])
def test_each_producer_has_the_checksums_in_a_section_of_its_own(producer: Producer) -> None:
    for section, of in (("integrity", "classic"), ("sink.integrity", "new")):
        found = read_changefeed(AVRO, read_toml(f"[{section}]\n{CORRECT}"), producer=producer)
        assert found.options["row-checksum"] is (of == producer)


def test_a_value_of_nothing_in_the_uri_does_not_undo_the_files() -> None:
    toml = "[sink.kafka-config.codec-config]\nenable-tidb-extension=true\navro-decimal-handling-mode='string'"
    uri = f"{AVRO}&enable-tidb-extension=false&avro-decimal-handling-mode="
    options = read_changefeed(uri, read_toml(toml)).options
    assert (options["enable-tidb-extension"], options["avro-decimal-handling-mode"]) == (True, "string")
    assert read_changefeed(uri).options["avro-decimal-handling-mode"] == "precise"


def test_the_first_of_two_values_counts_and_unknown_parameters_do_not() -> None:
    uri = f"{CANAL}&content-compatible=true&content-compatible=false&nonsense=1"
    assert read_changefeed(uri).options["content-compatible"]


@pytest.mark.parametrize(
    ("more", "protocol"),
    [
        ("", None),
        ("&enable-tls=true", "SSL"),
        ("&ca=a&cert=b&key=c", "SSL"),
        ("&enable-tls=false&ca=a&cert=b&key=c", None),
        ("&ca=a", None),
        ("&sasl-mechanism=plain&sasl-user=u", "SASL_PLAINTEXT"),
    ],
)
def test_tls_follows_from_its_files(more: str, protocol: str | None) -> None:
    draft = pipeline_draft(read_changefeed(CANAL + more))
    assert draft.source.get("kafka", {}).get("security.protocol") == protocol


def test_a_mistyped_member_of_a_dispatcher_is_told() -> None:
    feed = read_changefeed(CANAL, read_toml("[sink]\ndispatchers=[{matcher=['a.*'],topics='x'}]"))
    assert "topics is unknown (did you mean topic?)" in feed.warnings[0]


def test_a_changefeed_shows_no_secret() -> None:
    feed = read_changefeed(f"{CANAL}&sasl-password=hunter2&schema-registry=http://u:hunter2@r")
    assert "hunter2" not in repr(feed)


def test_a_section_that_is_none_is_told() -> None:
    for toml in ("sink=1", "[sink]\nkafka-config=1", "[sink.kafka-config]\nlarge-message-handle=1"):
        with pytest.raises(ConfigError, match="must be a section"):
            read_changefeed(CANAL, read_toml(toml))


_FILTERED: Final = """
[filter]
rules = ['shop.*']
ignore-txn-start-ts = [1, 2]
[[filter.event-filters]]
matcher = ['shop.t']
ignore-event = ['delete']
[[filter.event-filters]]
matcher = ['shop.u']
ignore-update-only-columns = ['version', 'updated_at']
[[filter.event-filters]]
matcher = ['shop.w']
ignore-sql = ['^DROP']
ignore-insert-value-expr = 'id >= 100'
ignore-inserts = ['x']
[[filter.event-filters]]
matcher = ['shop.x']
ignore-delete-value-expr = 'id < 5'
[[filter.event-filters]]
matcher = ['shop.y']
ignore-update-new-value-expr = 'id < 6'
[[filter.event-filters]]
matcher = ['shop.z']
ignore-update-old-value-expr = 'id < 7'
[sink]
column-selectors = [{matcher = ['shop.v'], columns = ['uk', 'a']}]
"""


def _notes(toml: str, *tables: str) -> str:
    definitions = TableDefinitions()
    for statement in tables:
        definitions.apply(statement, "shop")
    return "\n".join(pipeline_draft(read_changefeed(CANAL, read_toml(toml)), definitions).notes)


@pytest.mark.parametrize(
    "says",
    [
        r"shop\.t: .*leaves out events of the kinds delete: the target will differ",
        r"shop\.t: .*update of a key as a delete and an insert.*keeps the old row",
        r"shop\.u: .*updates that change only version, updated_at: the target will differ",
        r"shop\.w: .*DDL that matches \^DROP: the target will differ",
        r"shop\.w: .*inserted rows with id >= 100: the target will differ",
        r"shop\.x: .*deletes of rows with id < 5: the target will differ",
        r"shop\.x: .*key as a delete and an insert.*delete-value-expr may leave.*keeps the old row",
        r"shop\.y: .*key as a delete and an insert.*update-new-value-expr may leave.*keeps the old row",
        r"shop\.z: .*key as a delete and an insert.*update-old-value-expr may leave.*keeps the old row",
        r"shop\.w: .*tidesink does not know .*ignore-inserts",
        r"shop\.v: .*sends only the columns uk, a: the target will differ.*tables, as columns",
        r"shop\.v: if .*leaves out a column of the primary key: .*keys: \[uk\]",
        "ignore-txn-start-ts leaves out 2 whole transactions",
    ],
)
def test_what_a_changefeed_leaves_out_is_told_by_table(says: str) -> None:
    assert re.search(says, _notes(_FILTERED))


def test_a_rule_that_takes_no_delete_says_nothing_of_old_rows() -> None:
    notes = _notes(_FILTERED).splitlines()
    assert not [one for one in notes if "old row" in one and one.startswith(("shop.u", "shop.w"))]


def test_a_known_key_is_looked_for_among_the_selected_columns() -> None:
    table = "CREATE TABLE v (id INT PRIMARY KEY, uk INT NOT NULL UNIQUE, a INT)"
    assert "shop.v: sink.column-selectors[0] leaves out id of the table's key" in _notes(_FILTERED, table)
    for columns in ("['ID', 'a']", "['*', '!a']"):
        toml = f"[sink]\ncolumn-selectors = [{{matcher = ['shop.v'], columns = {columns}}}]"
        assert "keys: [" not in _notes(toml, table)
    assert "leaves out id" in _notes(
        "[sink]\ncolumn-selectors = [{matcher = ['shop.v'], columns = ['*', '!i*']}]", table
    )


def test_a_changefeed_that_sends_everything_needs_no_note() -> None:
    assert _notes("[filter]\nrules = ['shop.*']") == ""
