"""The shop: the tables of the workload, as the DDL that made them."""

from __future__ import annotations

from typing import NamedTuple

from tidesink.events import TableId, Value

SCHEMA = "shop"

CREATE: dict[TableId, str] = {
    TableId(SCHEMA, "customers"): """
        CREATE TABLE `shop`.`customers` (
          `id` BIGINT UNSIGNED PRIMARY KEY,
          `email` VARCHAR(120) NOT NULL,
          `name` VARCHAR(80),
          `country` CHAR(2) DEFAULT 'DE',
          `tier` ENUM('basic','silver','gold, platinum') NOT NULL DEFAULT 'basic',
          `tags` SET('vip','gift','late') DEFAULT NULL,
          `balance` DECIMAL(20,4) NOT NULL,
          `profile` JSON,
          `created_at` TIMESTAMP(3) NULL
        )""",
    TableId(SCHEMA, "products"): """
        CREATE TABLE `shop`.`products` (
          `sku` VARCHAR(24) NOT NULL,
          `title` VARCHAR(120) NOT NULL,
          `price` DECIMAL(12,2) NOT NULL,
          `stock` INT UNSIGNED NOT NULL DEFAULT 0,
          `weight` FLOAT,
          `added` DATE,
          `photo` VARBINARY(64),
          PRIMARY KEY (`sku`)
        )""",
    TableId(SCHEMA, "orders"): """
        CREATE TABLE `shop`.`orders` (
          `id` BIGINT PRIMARY KEY,
          `customer_id` BIGINT UNSIGNED NOT NULL,
          `placed_at` DATETIME(6) NOT NULL,
          `status` ENUM('new','paid','shipped','returned') NOT NULL,
          `total` DECIMAL(38,10),
          `note` TEXT
        )""",
    TableId(SCHEMA, "order_items"): """
        CREATE TABLE `shop`.`order_items` (
          `order_id` BIGINT NOT NULL,
          `line` SMALLINT UNSIGNED NOT NULL,
          `sku` VARCHAR(24),
          `quantity` INT,
          `price` DECIMAL(12,2),
          PRIMARY KEY (`order_id`, `line`)
        )""",
    TableId(SCHEMA, "every_type"): """
        CREATE TABLE `shop`.`every_type` (
          `id` BIGINT UNSIGNED PRIMARY KEY,
          `a_tinyint` TINYINT, `a_tinyint_unsigned` TINYINT UNSIGNED, `a_bool` BOOL,
          `a_smallint` SMALLINT, `a_smallint_unsigned` SMALLINT UNSIGNED,
          `a_mediumint` MEDIUMINT, `a_mediumint_unsigned` MEDIUMINT UNSIGNED,
          `an_int` INT, `an_int_unsigned` INT UNSIGNED,
          `a_bigint` BIGINT, `a_bigint_unsigned` BIGINT UNSIGNED,
          `a_float` FLOAT, `a_double` DOUBLE,
          `a_decimal` DECIMAL(10,2), `a_decimal_38` DECIMAL(38,10), `a_decimal_65` DECIMAL(65,30),
          `a_char` CHAR(10), `a_varchar` VARCHAR(60),
          `a_tinytext` TINYTEXT, `a_text` TEXT, `a_mediumtext` MEDIUMTEXT, `a_longtext` LONGTEXT,
          `a_binary` BINARY(6), `a_varbinary` VARBINARY(40),
          `a_tinyblob` TINYBLOB, `a_blob` BLOB, `a_mediumblob` MEDIUMBLOB, `a_longblob` LONGBLOB,
          `a_bit` BIT(1), `a_bit_12` BIT(12), `a_bit_64` BIT(64),
          `an_enum` ENUM('red','green','b,lue'), `a_set` SET('x','y','z'),
          `a_json` JSON,
          `a_date` DATE, `a_time` TIME(4), `a_datetime` DATETIME(6), `a_timestamp` TIMESTAMP(2) NULL,
          `a_year` YEAR, `a_vector` VECTOR(3),
          `a_default` INT DEFAULT 7
        )""",
}


class AddedColumn(NamedTuple):
    """A column that comes in mid-stream, and what the rows that are there have in it from then on."""

    name: str
    in_old_rows: Value
    sql: str


# As a release of the shop would do it: with a default that old rows get, and without one.
ALTER: dict[TableId, AddedColumn] = {
    TableId(SCHEMA, "customers"): AddedColumn(
        "nickname", None, "ALTER TABLE `shop`.`customers` ADD COLUMN `nickname` VARCHAR(40)"
    ),
    TableId(SCHEMA, "products"): AddedColumn(
        "stock_least",
        3,
        "ALTER TABLE `shop`.`products` ADD COLUMN `stock_least` INT UNSIGNED NOT NULL DEFAULT 3",
    ),
    TableId(SCHEMA, "orders"): AddedColumn(
        "channel",
        "web",
        "ALTER TABLE `shop`.`orders` ADD COLUMN `channel` VARCHAR(20) NOT NULL DEFAULT 'web'",
    ),
}
