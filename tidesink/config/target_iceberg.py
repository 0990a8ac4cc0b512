"""Settings of Iceberg tables, in any catalog that Spark knows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo

from tidesink.config.fields import Model, beside_config


def _names_tables(template: str) -> str:
    if "{schema}" not in template or "{table}" not in template:
        raise ValueError("use both placeholders, as in {schema}.{table}: two tables could share one name")
    levels = template.replace("{schema}", "s").replace("{table}", "t").split(".")
    if not all(level.isidentifier() for level in levels) or len(levels) < 2:
        raise ValueError(
            "give names of letters, digits and _ with dots between, and the placeholders {schema} and "
            "{table} alone, as in lake.{schema}_{table}: a namespace, and the table's own name last"
        )
    return template


CatalogName = Annotated[str, AfterValidator(_names_tables)]
"""A table's name in a catalog, with the placeholders {schema} and {table}."""


def _no_session_catalog(name: str) -> str:
    if name.lower() == "spark_catalog":
        raise ValueError("spark_catalog is Delta's: give the catalog its own name")
    return name


def _with_paths(properties: Any, info: ValidationInfo) -> Any:
    """A warehouse given as a path is read from the config file's folder; numbers and booleans are text."""
    if not isinstance(properties, dict):
        return properties
    texts = {name: _text(value) for name, value in properties.items()}
    warehouse = texts.get("warehouse")
    if isinstance(warehouse, str) and warehouse.startswith(("./", "../", "~")):
        texts["warehouse"] = beside_config(warehouse, info)
    return texts


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class IcebergSettings(Model):
    """Iceberg tables of one catalog, each named by ``table``; ``catalog-properties`` are kept secret."""

    type: Literal["iceberg"]
    """`iceberg`: Iceberg tables in a catalog."""
    catalog: Annotated[
        str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), AfterValidator(_no_session_catalog)
    ] = "iceberg"
    """The catalog's name in Spark."""
    catalog_properties: Annotated[dict[str, SecretStr], BeforeValidator(_with_paths)] = Field(
        default_factory=dict
    )
    """What the catalog is, in Iceberg's words: `type` (`rest`, `hive`, `hadoop`, `glue`, `jdbc`, `nessie`)
    or `catalog-impl`, `uri`, `warehouse`, …; their values are never shown. Without any, `spark.conf` says it
    under `spark.sql.catalog.NAME`."""
    table: CatalogName = "{schema}.{table}"
    """A table's namespace and name; must contain `{schema}` and `{table}`."""

    def catalog_values(self) -> dict[str, str]:
        """``catalog-properties`` in plain text: never log it."""
        return {name: value.get_secret_value() for name, value in self.catalog_properties.items()}
