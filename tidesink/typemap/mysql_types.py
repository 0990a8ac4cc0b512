"""Parses MySQL's SQL text: tokens, column types, and column defaults.

The tokens are sufficient for DDL that TiCDC forwards or that a user writes: the output of TiDB's restorer
(tiflow c7b2588: back-quoted names, ``_UTF8MB4'..'`` defaults, ``/*T![feature] .. */``) and hand-written
MySQL. Executable comments are read like other SQL; all other comments are dropped. The restorer does not
escape backslashes but MySQL's own parser does, so the caller chooses. ``DELIMITER`` lines are obeyed, with
which the clients of MySQL and MariaDB set the statement terminator.

Types look like ``decimal(10,2) unsigned`` or ``enum('a','b')``. The text is that of ``SHOW CREATE TABLE`` and
of canal-json's content-compatible ``mysqlType`` (TiCDC, tiflow c7b2588: lower case, members quoted with ``'``
doubled inside, a backslash is literal). ``shown_type`` builds this text from the words of a DDL statement as
TiDB does.

Defaults have the same texts as in TiDB, with one exception: BINARY and BIT defaults, which are bytes in TiDB,
are text of U+0000 to U+00FF here, one character per byte. ``CURRENT_TIMESTAMP`` represents every spelling of
the current time. An expression that only the database can compute has no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal
from typing import Final, Literal, NamedTuple, cast

from tidesink.errors import ConfigError, shown
from tidesink.events import UNKNOWN_DEFAULT, ColumnType
from tidesink.typemap.table import NUMBER_READERS, TypeRow, find_row, render_members, row_named, row_of

TokenKind = Literal["word", "quoted", "string", "number", "bits", "hex", "sign", "end"]


class Token(NamedTuple):
    """One token of SQL.

    ``text`` is without quotes; for ``bits`` and ``hex`` it holds only the digits. The kind ``end`` is the end
    of a statement: a semicolon, or the delimiter that a ``DELIMITER`` line sets. After such a line a
    semicolon is a ``sign``.
    """

    kind: TokenKind
    text: str

    def says(self, *words: str) -> bool:
        """Returns True if the token is one of ``words``: signs, or unquoted words in upper case.

        The token's own case does not matter.
        """
        return self.kind in ("word", "sign") and self.text.isascii() and self.text.upper() in words


# Comments of TiDB, of MySQL with the server's minimum version, and of MariaDB.
_EXECUTABLE = re.compile(r"/\*(?:T!(?:\[[^\]]*\])?|M?!(\d{0,6}))(.*?)\*/", re.S)
# No server has this version: comments that mariadb-dump marks with it are never executed.
_NO_VERSION: Final = 900_000
# As clients read it: from the beginning of a statement to the end of the line.
_DELIMITER = re.compile(r"delimiter[ \t]+(\S+)[^\n]*", re.I)
_SEMICOLON: Final = ";"
_SKIPPED = re.compile(r"\s+|/\*.*?\*/|--(?=\s|$)[^\n]*|#[^\n]*", re.S)
_TOKEN = re.compile(
    r"""
      (?P<bits>b'[01]*'|0b[01]+(?![\w$]))
    | (?P<hex>x'[0-9a-f]*'|0x[0-9a-f]+(?![\w$]))
    | (?P<introducer>_[a-z0-9]+(?=\s*(?:['"]|[bx]'|0[bx]))|n(?='))
    | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?(?![\w$]))
    | (?P<word>[\w$]+|@@?[\w.$]+)
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<sign>[(),.;=*+/%<>!:&|^~?@{}\[\]-])
    """,
    re.X | re.I,
)
_STRING = {
    (quote, escapes): re.compile(
        rf"{quote}(?:[^{quote}\\]|{quote}{quote}|\\.)*{quote}"
        if escapes
        else rf"{quote}(?:[^{quote}]|{quote}{quote})*{quote}",
        re.S,
    )
    for quote in ("'", '"')
    for escapes in (True, False)
}
# MySQL's escapes; a backslash before any other character is dropped.
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def tokens(sql: str, *, backslash_escapes: bool = True) -> list[Token]:
    """Returns the tokens of one or more SQL statements.

    Raises:
        ConfigError: A part of the text is not a token, for example a quote or a comment that is not closed.
    """
    return list(each_token(sql, backslash_escapes=backslash_escapes))


def each_token(sql: str, *, backslash_escapes: bool = True, delimiter: str = _SEMICOLON) -> Iterator[Token]:
    """Yields the tokens of SQL statements one by one; text after the last requested token is not read.

    ``delimiter``: terminator of statements, until a ``DELIMITER`` line sets another.

    Raises:
        ConfigError: A part of the text is not a token.
    """
    position, begins = 0, True
    while position < len(sql):
        if sql.startswith("/*", position) and sql.find("*/", position + 2) < 0:
            # Without this check, a search for the end of each of many comments would need quadratic time.
            raise ConfigError(
                f"the SQL has a comment that is never closed, at {sql[position : position + 30]!r}"
            )
        executable = _EXECUTABLE.match(sql, position) if sql.startswith("/*", position) else None
        if executable is not None:
            if int(executable.group(1) or 0) < _NO_VERSION:
                inside = executable.group(2)
                yield from each_token(inside, backslash_escapes=backslash_escapes, delimiter=delimiter)
                begins = False
            position = executable.end()
            continue
        skipped = _SKIPPED.match(sql, position)
        if skipped is not None:
            position = skipped.end()
            continue
        line = _DELIMITER.match(sql, position) if begins else None
        if line is not None:
            delimiter, position = line.group(1).strip("'\"`") or _SEMICOLON, line.end()
            yield Token("end", line.group())
            continue
        begins = sql.startswith(delimiter, position)
        if begins:
            position += len(delimiter)
            yield Token("end", delimiter)
            continue
        token, position = _next(sql, position, backslash_escapes, delimiter)
        if token is not None:
            yield token


def _next(sql: str, position: int, escapes: bool, delimiter: str) -> tuple[Token | None, int]:
    if sql[position] in "'\"":
        return _string(sql, position, escapes)
    match = _TOKEN.match(sql, position)
    if match is not None and match.lastgroup == "word" and delimiter in match.group():
        # END$$
        match = _TOKEN.match(sql, position, position + match.group().index(delimiter))
    if match is None:
        raise ConfigError(f"the SQL cannot be parsed at {sql[position : position + 30]!r}")
    kind, text = match.lastgroup, match.group()
    if kind == "introducer":
        return None, match.end()
    if kind == "quoted":
        text = text[1:-1].replace("``", "`")
    elif kind in ("bits", "hex"):
        text = re.sub(r"^0[bx]|^[bx]'|'$", "", text, flags=re.I)
    return Token(cast("TokenKind", kind), text), match.end()


def _string(sql: str, position: int, escapes: bool) -> tuple[Token, int]:
    quote = sql[position]
    match = _STRING[quote, escapes].match(sql, position)
    if match is None:
        raise ConfigError(f"the SQL has a quote that is never closed, at {sql[position : position + 30]!r}")
    text = match.group()[1:-1]
    if not escapes:
        return Token("string", text.replace(quote * 2, quote)), match.end()
    unescaped = re.sub(rf"{quote}{quote}|\\(.)", lambda m: _unescape(m, quote), text, flags=re.S)
    return Token("string", unescaped), match.end()


def _unescape(match: re.Match[str], quote: str) -> str:
    letter = match.group(1)
    return quote if letter is None else _ESCAPES.get(letter, letter)


_MOST_DIGITS = 20


def whole_number(token: Token) -> int:
    """Returns the number in a token of digits.

    Raises:
        ConfigError: The token is not a number, or is longer than any number in a column definition.
    """
    if not (token.text.isascii() and token.text.isdigit()) or len(token.text) > _MOST_DIGITS:
        raise ConfigError(f"the SQL has {token.text[:30]!r} where a whole number was expected")
    return int(token.text)


_END = Token("sign", "")


class SqlReader:
    """Reads SQL tokens one by one.

    ``skip`` and ``skip_any`` return True if they consumed tokens. The other methods that consume tokens raise
    ConfigError if the expected token does not follow.
    """

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def done(self) -> bool:
        """True if all tokens have been read."""
        return self._at >= len(self._tokens)

    def peek(self, ahead: int = 0) -> Token:
        """Returns an upcoming token without consuming it; an empty token after the end.

        ``ahead``: number of tokens between the next token and the returned token.
        """
        position = self._at + ahead
        return self._tokens[position] if position < len(self._tokens) else _END

    def take(self) -> Token:
        """Consumes and returns the next token.

        Raises:
            ConfigError: No token is left.
        """
        token = self.peek()
        if token is _END:
            raise ConfigError("the SQL statement ends too early, where more words were expected")
        self._at += 1
        return token

    def sees(self, *words: str) -> bool:
        """Returns True if the next tokens are these words, in this order."""
        return all(self.peek(n).says(word) for n, word in enumerate(words))

    def skip(self, *words: str) -> bool:
        """Consumes these words if they are the next tokens, in this order; returns True if they are."""
        if not self.sees(*words):
            return False
        self._at += len(words)
        return True

    def skip_any(self, *words: str) -> bool:
        """Consumes the next token if it is one of these words; returns True if it is."""
        if not self.peek().says(*words):
            return False
        self._at += 1
        return True

    def copy(self) -> SqlReader:
        """Returns an independent reader, which begins at the next token."""
        return SqlReader(self._tokens[self._at :])

    def put_back(self, token: Token) -> None:
        """Makes ``token`` the next token that is read."""
        self._tokens, self._at = [token, *self._tokens[self._at :]], 0

    def need(self, *words: str) -> None:
        """Consumes these words, which must be the next tokens.

        Raises:
            ConfigError: Other tokens follow.
        """
        if not self.skip(*words):
            raise ConfigError(f"the SQL must have {' '.join(words)} before {shown(self.peek().text)}")

    def name(self) -> str:
        """Consumes an identifier and returns its name.

        The identifier is bare, back-quoted, or double-quoted as under ANSI_QUOTES.

        Raises:
            ConfigError: The next token is not an identifier.
        """
        token = self.take()
        if token.kind not in ("word", "quoted", "string"):
            raise ConfigError(f"the SQL has {shown(token.text)} where a name was expected")
        return token.text

    def group(self) -> list[Token]:
        """Consumes a group in parentheses, and returns the tokens between the parentheses.

        Raises:
            ConfigError: The next token is not an opening parenthesis, or the closing parenthesis is missing.
        """
        self.need("(")
        inside: list[Token] = []
        depth = 1
        while True:
            token = self.take()
            depth += token.says("(") - token.says(")")
            if depth == 0:
                return inside
            inside.append(token)

    def rest(self) -> list[Token]:
        """Consumes and returns all tokens that are not yet read."""
        rest = [*self._tokens[self._at :]]
        self._at = len(self._tokens)
        return rest

    def parts(self) -> list[SqlReader]:
        """Consumes all remaining tokens, splits them at commas, and returns one reader for each part."""
        return [SqlReader(part) for part in split_by_comma(self.rest()) if part]

    def skip_item(self) -> None:
        """Consumes one token, or a whole group in parentheses."""
        if self.sees("("):
            self.group()
        else:
            self.take()


def split_by_comma(tokens: Sequence[Token]) -> list[list[Token]]:
    """Splits tokens at the commas outside parentheses."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += token.says("(") - token.says(")")
        if depth == 0 and token.says(","):
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


_SHAPE = re.compile(
    # No two parts may match the same spaces: type texts are external input, and a thousand spaces are
    # possible.
    r"\s*([a-z0-9_]+(?:\s+[a-z0-9_]+)*)(?:\s*\((.*)\)((?:\s*(?:unsigned|signed|zerofill))*))?\s*",
    re.I | re.S,
)
_ATTRIBUTES = frozenset({"unsigned", "signed", "zerofill"})
_MEMBER = re.compile(r"'((?:[^']|'')*)'", re.S)
_LENGTH_AND_SCALE = re.compile(r"\s*\d{1,9}\s*(?:,\s*\d{1,9}\s*)?", re.ASCII)
_TEMPORAL = frozenset(
    {"time", "datetime", "timestamp", "local time", "local datetime", "zoned time", "instant"}
)
# Far above every database's own limits. Defaults are padded up to these sizes.
_MOST_ARGUMENT = {"decimal": 131_072, "binary": 65_535, "bit": 8_192, "time": 12}
# FLOAT(p) is a 32-bit number up to 24 bits of precision.
_FLOAT_BITS = 24


def parse_sql_type(text: str) -> ColumnType:
    """Parses the text of a MySQL type with its arguments, such as ``decimal(10,2) unsigned``.

    Raises:
        ConfigError: The text is not a type, or its type is unknown.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{shown(text)} is not an SQL type")
    words, attributes = match[1].lower().split(), (match[3] or "").lower().split()
    name = " ".join(word for word in words if word not in _ATTRIBUTES)
    row = row_named("tinyint" if name in ("bool", "boolean") else name)
    if not {"unsigned", "zerofill"}.isdisjoint([*words, *attributes]):
        row = find_row(row.name + " unsigned") or row
    return _with_arguments(row, match[2], text.strip())


def _with_arguments(row: TypeRow, arguments: str | None, text: str) -> ColumnType:
    if row.parameter == "allowed":
        members = parse_members(arguments) if arguments is not None else None
        return ColumnType(row.name, members=members, sql=text)
    if arguments and _LENGTH_AND_SCALE.fullmatch(arguments) is None:
        raise ConfigError(f"{shown(text)} is not an SQL type, because its arguments are not numbers")
    numbers = [int(part) for part in arguments.split(",")] if arguments else []
    first = numbers[0] if numbers else None
    if numbers and max(numbers) > _MOST_ARGUMENT.get(
        "time" if row.name in _TEMPORAL else row.name, max(numbers)
    ):
        raise ConfigError(
            f"{shown(text)} is not an SQL type, because {max(numbers)} is above the limit of every database"
        )
    if row.name == "decimal":
        scale = numbers[1] if len(numbers) > 1 else (0 if numbers else None)
        return ColumnType(row.name, precision=first, scale=scale, sql=text)
    if row.name in _TEMPORAL:
        return ColumnType(row.name, fsp=first, sql=text)
    if row.name == "float" and len(numbers) == 1 and numbers[0] > _FLOAT_BITS:
        return ColumnType("double", sql=text)
    return ColumnType(row.name, length=first, sql=text)


def parse_members(arguments: str) -> tuple[str, ...]:
    """Returns the members in the arguments of an ENUM or SET (such as ``'a','b'``), without their quotes."""
    return tuple(member.replace("''", "'") for member in _MEMBER.findall(arguments))


def shown_type(
    word: str, arguments: Sequence[Token], attributes: Sequence[str], *, charset: str | None
) -> str:
    """Returns the full text that TiDB shows for a column's type in DDL.

    ``word`` is the type's name in lower case, ``arguments`` the tokens between its parentheses, and
    ``attributes`` words such as ``unsigned``.

    Raises:
        ConfigError: The type is unknown.
    """
    if word in ("bool", "boolean"):
        return "tinyint(1)"
    row = row_named(word)
    if row.parameter == "allowed":
        members = [token.text.rstrip(" ") for token in arguments if token.kind == "string"]
        return f"{row.name}({render_members(members)})"
    numbers = [whole_number(token) for token in arguments if token.kind == "number"]
    name = row.name if charset != "binary" else _BINARY.get(row.name, row.name)
    unsigned = "unsigned" in attributes or "zerofill" in attributes
    text = _shown(name, numbers, unsigned=unsigned, bytes_each=_bytes_each(name, charset))
    return text + (" unsigned" if unsigned else "") + (" zerofill" if "zerofill" in attributes else "")


# CHARACTER SET binary turns text into bytes.
_BINARY = {
    "char": "binary",
    "varchar": "varbinary",
    "tinytext": "tinyblob",
    "text": "blob",
    "mediumtext": "mediumblob",
    "longtext": "longblob",
}


def as_bytes(column_type: ColumnType) -> ColumnType:
    """Returns the type that a column has after ALTER TABLE … CONVERT TO CHARACTER SET binary.

    This statement changes text types to the corresponding binary types, and no other types.
    """
    name = _BINARY.get(column_type.name)
    if name is None or column_type.sql is None:
        return column_type
    return parse_sql_type(re.sub(r"^\w+", name, column_type.sql))


_CHARSET_BYTES = {"latin1": 1, "ascii": 1, "binary": 1, "gbk": 2, "utf8": 3, "utf8mb3": 3}
# TEXT(n) and BLOB(n) become the smallest kind that holds n characters.
_SIZED = ((255, "tiny"), (65535, ""), (16777215, "medium"))


def _bytes_each(name: str, charset: str | None) -> int:
    return 1 if name.endswith("blob") else _CHARSET_BYTES.get(charset or "", 4)


def _shown(name: str, numbers: list[int], *, unsigned: bool, bytes_each: int) -> str:
    if name in ("text", "blob") and numbers:
        size = numbers[0] * bytes_each
        return next((kind for limit, kind in _SIZED if size <= limit), "long") + name
    if name == "decimal":
        precision, scale = (*numbers, 0)[:2] if numbers else (10, 0)
        return f"decimal({precision or 10},{scale})"
    if name in _TEMPORAL:
        return f"{name}({numbers[0]})" if numbers and numbers[0] else name
    if name in ("float", "double") and len(numbers) < 2:
        return "double" if name == "double" or (numbers and numbers[0] > _FLOAT_BITS) else "float"
    return name + _shown_arguments(name, numbers, unsigned=unsigned)


def _shown_arguments(name: str, numbers: list[int], *, unsigned: bool) -> str:
    if name == "year":
        return "(4)"
    if name in ("char", "binary") and not numbers:
        return "(1)"
    if numbers:
        return f"({','.join(map(str, numbers))})"
    row = find_row(name + " unsigned") if unsigned else None
    width = (row or row_named(name)).display_width
    return f"({width})" if width is not None else ""


# The producer's word for every spelling of the current time.
CURRENT_TIME: Final = "CURRENT_TIMESTAMP"
_NOW = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_DATE", "CURDATE"})
# A string after one of these words is a literal of that type. {d '2020-01-01'} is four tokens.
_TIMES: Final = ("DATE", "TIME", "TIMESTAMP")
_ODBC_TOKENS: Final = 4
_WORDS = {"TRUE": "1", "FALSE": "0", "NULL": None}
_MAX_SHORT_YEAR = 69
# A DECIMAL has 65 digits, a DOUBLE's exponent three; these limits protect memory.
_MOST_NUMBER = 1024
_MOST_EXPONENT = 1024


def default_text(expression: Sequence[Token], column_type: ColumnType) -> str | None:
    """Returns the text of the default in a column's DDL.

    Returns None for NULL and for an expression that only the database can compute.
    """
    tokens = list(expression)
    inside = 0
    while len(tokens) > 2 * inside + 2 and tokens[inside].says("(") and tokens[-1 - inside].says(")"):
        inside += 1
    tokens = tokens[inside : len(tokens) - inside]
    negative = bool(tokens) and tokens[0].says("-")
    if tokens and tokens[0].says("-", "+"):
        tokens = tokens[1:]
    if not tokens:
        return None
    literal, *rest = _constant(tokens)
    if literal.kind == "word" and literal.text.upper() in _NOW and not negative:
        return CURRENT_TIME if _is_precision(rest) else None
    if rest or (literal.kind == "word" and negative):
        return None
    if literal.kind == "word":
        return _WORDS.get(literal.text.upper())
    return _literal(literal, column_type, "-" if negative else "")


def _constant(expression: list[Token]) -> list[Token]:
    """Replaces a literal of several tokens in a default by one token; returns other tokens unchanged.

    Such literals are ``DATE'2020-01-01'``, the same in ODBC's form (``{d '2020-01-01'}``), and adjacent
    strings, which form one string.
    """
    if len(expression) == _ODBC_TOKENS and expression[0].says("{") and expression[-1].says("}"):
        kind, literal = expression[1:-1]
        return [literal] if kind.says("D", "T", "TS") and literal.kind == "string" else expression
    texts = expression[1:] if expression[0].says(*_TIMES) else expression
    if not texts or any(token.kind != "string" for token in texts):
        return expression
    return [Token("string", "".join(token.text for token in texts))]


def _is_precision(tokens: Sequence[Token]) -> bool:
    """Returns True if the tokens may follow a function for the current time, such as CURRENT_TIMESTAMP.

    This is so if there are no tokens, or if the tokens are ``()`` or a number in parentheses.
    """
    if not tokens:
        return True
    opens, *inside = tokens
    if not opens.says("(") or not inside or not inside[-1].says(")"):
        return False
    return len(inside) == 1 or (len(inside) == 2 and inside[0].kind == "number")


def _literal(literal: Token, column_type: ColumnType, sign: str) -> str | None:
    reader = row_of(column_type).reader
    if literal.kind in ("bits", "hex"):
        return _from_bytes(_bytes(literal), reader)
    text = sign + (literal.text if literal.kind == "string" else _plain_number(literal.text, reader))
    if reader == "bit":
        return _bit(literal, column_type)
    if reader == "binary":
        return _padded(text.encode().decode("latin-1"), column_type)
    if reader in ("enum", "set"):
        return _labels(literal, column_type)
    if reader in ("datetime", "timestamp"):
        return _datetime(text, column_type.fsp or 0)
    if column_type.name == "year":
        return _year(text)
    return text


def _bytes(literal: Token) -> bytes:
    if literal.kind == "hex":
        return bytes.fromhex(literal.text.zfill(len(literal.text) + len(literal.text) % 2))
    size = (len(literal.text) + 7) // 8
    return int(literal.text or "0", 2).to_bytes(size, "big")


def _from_bytes(raw: bytes, reader: str) -> str:
    if reader in ("bit", "binary"):
        return raw.decode("latin-1")
    if reader in NUMBER_READERS:
        if len(raw) > _MOST_NUMBER:
            raise ConfigError(
                f"the SQL has a number of {len(raw)} bytes, which is too large for the default of a column"
            )
        return str(int.from_bytes(raw, "big"))
    return raw.decode("utf-8", "replace")


def _plain_number(text: str, reader: str) -> str:
    if "e" not in text.lower() or reader not in NUMBER_READERS:
        return text
    try:
        number = Decimal(text)
    except ArithmeticError:
        number = None
    # Written out, 1e999999999 would need a gigabyte.
    if number is None or abs(number.adjusted()) > _MOST_EXPONENT:
        raise ConfigError(
            f"the SQL has the number {text[:30]!r}, which is too large for the default of a column"
        )
    return format(number, "f")


def _bit(literal: Token, column_type: ColumnType) -> str:
    if literal.kind == "string":
        return literal.text.encode().decode("latin-1")
    return _bit_text(whole_number(literal), column_type)[-_bit_width(column_type) :]


def _bit_width(column_type: ColumnType) -> int:
    return ((column_type.length or 1) + 7) // 8


def _bit_text(number: int, column_type: ColumnType) -> str:
    size = max(_bit_width(column_type), (number.bit_length() + 7) // 8)
    return number.to_bytes(size, "big").decode("latin-1")


def _padded(text: str, column_type: ColumnType) -> str:
    return text.ljust(column_type.length or 1, "\0") if column_type.name == "binary" else text


def _labels(literal: Token, column_type: ColumnType) -> str:
    members = column_type.members or ()
    if literal.kind == "number":
        number = whole_number(literal)
        if column_type.name == "enum":
            return members[number - 1] if 0 < number <= len(members) else ""
        return ",".join(m for bit, m in enumerate(members) if number >> bit & 1)
    if column_type.name == "enum":
        return _member(members, literal.text.rstrip()) or literal.text
    wanted = {_member(members, part) for part in literal.text.split(",")}
    return ",".join(member for member in members if member in wanted)


def _member(members: Sequence[str], text: str) -> str | None:
    """Returns the ENUM or SET member to which the text of a default refers, or None.

    Upper and lower case may differ, but a member in the same case is preferred.
    """
    if text in members:
        return text
    return next((member for member in members if member.lower() == text.lower()), None)


def _datetime(text: str, fsp: int) -> str:
    day, _, clock = text.replace("T", " ").partition(" ")
    whole, _, fraction = clock.partition(".")
    shown = f"{day} {whole or '00:00:00'}"
    return f"{shown}.{fraction[:fsp].ljust(fsp, '0')}" if fsp else shown


def _year(text: str) -> str:
    if not text.isdigit() or len(text) > 2:
        return text
    number = int(text)
    return str(number + (2000 if number <= _MAX_SHORT_YEAR else 1900)) if number or text == "00" else "0000"


# By type, or else by reader; numbers have 0.
_ZERO = {
    "json": "null",
    "vector": "[]",
    "year": "0000",
    "text": "",
    "set": "",
    "date": "0000-00-00",
    "datetime": "0000-00-00 00:00:00",
    "timestamp": "0000-00-00 00:00:00",
    "time": "00:00:00",
    "bit": "\0",
}


def zero_text(column_type: ColumnType) -> str:
    """Returns the value, as text, that existing rows get if a NOT NULL column is added without a default.

    It is the value that TiDB uses.
    """
    reader = row_of(column_type).reader
    if reader == "binary":
        return _padded("", column_type)
    if reader == "enum":
        return (column_type.members or ("",))[0]
    zero = _ZERO.get(column_type.name, _ZERO.get(reader, "0"))
    digits = column_type.scale if reader == "decimal" else column_type.fsp
    return f"{zero}.{'0' * digits}" if digits else zero


def default_as(text: str | None, was: ColumnType, now: ColumnType) -> str | None:
    """Converts the text of a default after the column's type changed, as TiDB converts stored values.

    For example, a column that was added as BIT and is now INT still has the default text of its BIT type.
    ``was``: type of the column when it got the default. ``now``: the column's present type.
    """
    old, new = row_of(was).reader, row_of(now).reader
    fewer_digits = old == new == "decimal" and (now.scale or 0) < (was.scale or 0)
    if text is None or text == UNKNOWN_DEFAULT or (old == new and not fewer_digits):
        return text
    if fewer_digits or (old in _FRACTIONS and new in ("integer", "unsigned64", "decimal")):
        return _rounded(text, now.scale or 0, halves_to_even=old != "decimal")
    if {old, new} <= _DAYS and text[:1].isdigit():
        return text.partition(" ")[0] if new == "date" else _datetime(text, now.fsp or 0)
    if old == "bit" and new in NUMBER_READERS:
        return str(int.from_bytes(text.encode("latin-1", "replace"), "big"))
    if (
        old in NUMBER_READERS
        and new == "bit"
        and text.isascii()
        and text.isdigit()
        and len(text) <= _MOST_NUMBER
    ):
        return _bit_text(int(text), now)
    if old == "binary" and new == "text":
        return text.encode("latin-1", "replace").decode("utf-8", "replace")
    if old == "text" and new == "binary":
        return text.encode().decode("latin-1")
    if old == "enum" and new in NUMBER_READERS and was.members is not None and text in was.members:
        return str(1 + was.members.index(text))
    if old == "set" and new in NUMBER_READERS and was.members is not None:
        labels = text.split(",")
        return str(sum(1 << bit for bit, member in enumerate(was.members) if member in labels))
    return text


_FRACTIONS: Final = frozenset({"decimal", "float32", "float64"})
# A DECIMAL has at most 65 digits.
_DIGITS: Final = Context(prec=100)
_DAYS: Final = frozenset({"date", "datetime", "timestamp"})


def _rounded(text: str, scale: int, *, halves_to_even: bool) -> str:
    try:
        number = Decimal(text)
        way = ROUND_HALF_EVEN if halves_to_even else ROUND_HALF_UP
        return format(number.quantize(Decimal(1).scaleb(-scale), way, _DIGITS), "f")
    except ArithmeticError:
        return text
