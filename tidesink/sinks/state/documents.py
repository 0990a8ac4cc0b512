"""How values are stored as JSON documents: one codec for the state store's documents and for progress.

A value is a dataclass, a named tuple, a ``msgspec.Struct`` or a collection of these. Its type declares its
stored form: a dataclass or a Struct is stored as an object with the names of its fields, a named tuple as a
list. msgspec converts between the two, and checks each member of a document that is read.

A ``DocumentKind`` declares one kind of document in the state store: its name, its key and the type of its
content. Only this module reads and writes documents.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from tidesink.errors import TidesinkError, UnusableStateStoreError

T = TypeVar("T")
_TRIES: Final = 20


class DocumentStore(Protocol):
    """Stores JSON documents by kind and key.

    Every method raises StateStoreError if the store does not answer.
    """

    def save_document(self, kind: str, name: str, document: Any) -> None:
        """Store a JSON-able document under a kind and a key."""

    def load_document(self, kind: str, name: str) -> Any | None:
        """Returns the document with this kind and key, or None if there is no such document."""

    def swap_document(self, kind: str, name: str, *, old: Any | None, new: Any) -> bool:
        """Replace a document atomically if it still equals ``old`` (None: it does not exist). Returns True if
        replaced.

        ``old`` is the document that ``load_document`` returned.
        """


class Version(NamedTuple):
    """The member of a document that has its format version, and the version that is read and written."""

    member: str
    number: int


@dataclass(frozen=True)
class StoredForm(Generic[T]):
    """The JSON form of values of one type.

    Attributes:
        content: The type of the values.
        subject: What an error message calls the document, such as ``The stored progress``.
        advice: What a user can do about a damaged document, as a sentence.
        error: The class of the error that is raised for a document that cannot be read.
        version: The document's format version, or None if it has none.
    """

    content: type[T]
    subject: str
    advice: str
    error: type[TidesinkError] = UnusableStateStoreError
    version: Version | None = None

    def write(self, value: T) -> Any:
        """Returns a value as a document: objects, lists and scalars that ``json.dumps`` accepts."""
        return msgspec.to_builtins(value, str_keys=True, enc_hook=_plain_text)

    def read(self, document: object) -> T:
        """Restore a value from the document that ``write`` returned.

        Raises:
            TidesinkError: The document has another form or another format version. The class is ``error``.
        """
        if self.version is not None:
            self._check_version(document, self.version)
        try:
            return msgspec.convert(document, self.content, str_keys=True)
        except (msgspec.ValidationError, ValueError) as exc:
            raise self.error(f"{self.subject} is damaged ({exc}). {self.advice}") from exc

    def read_text(self, text: str) -> T:
        """Restore a value from JSON text.

        Raises:
            TidesinkError: The text is not JSON, or ``read`` cannot read it. The class is ``error``.
        """
        try:
            document = json.loads(text)
        except ValueError as exc:
            raise self.error(
                f"{self.subject} is not valid JSON. Check if another program changed it. {self.advice}"
            ) from exc
        return self.read(document)

    def _check_version(self, document: object, version: Version) -> None:
        number = document.get(version.member) if isinstance(document, dict) else None
        if number != version.number:
            raise self.error(
                f"{self.subject} has format version {number!r}, but this tidesink reads version "
                f"{version.number}. Use the tidesink version that wrote it, or a newer version."
            )


def _plain_text(value: object) -> str:
    """Returns a text whose class is a subclass of ``str``, such as ``FoundType``, as plain text."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be stored")


def path_key(*names: str) -> str:
    """Returns the key of a document as names joined by ``/``, such as pipeline and topic."""
    return "/".join(names)


def list_key(*names: str) -> str:
    """Returns the key of a document as a JSON list of names, which may contain any character."""
    return json.dumps(names, ensure_ascii=False)


@dataclass(frozen=True)
class DocumentKind(Generic[T]):
    """One kind of document in the state store.

    Attributes:
        name: The kind in the store.
        content: The type of a document's content.
        key: Makes a document's key from the names that identify it, such as pipeline, schema and table.
        error: The class of the error that is raised for a document that cannot be read.
        version: The document's format version, or None if it has none.
    """

    name: str
    content: type[T]
    key: Callable[..., str] = path_key
    error: type[TidesinkError] = UnusableStateStoreError
    version: Version | None = None

    def of(self, store: DocumentStore, *names: str) -> Document[T]:
        """Returns the document with the key of these names. It need not exist in the store."""
        return Document(store, self, self.key(*names))


class Document(Generic[T]):
    """One document in the state store. Each method reads or writes the store.

    Every method raises StateStoreError if the store does not answer.
    """

    def __init__(self, store: DocumentStore, kind: DocumentKind[T], key: str) -> None:
        self._store = store
        self._kind = kind.name
        self._key = key
        self._form = StoredForm(
            kind.content,
            f"The document {kind.name!r} with the key {key!r} in the state store",
            "Check if another program changed it, or restore the state store from a backup.",
            kind.error,
            kind.version,
        )

    def load(self) -> T | None:
        """Returns the document's content, or None if there is no such document.

        Raises:
            UnusableStateStoreError: The content is damaged. A kind may declare another class of error.
        """
        return self._read(self._store.load_document(self._kind, self._key))

    def save(self, content: T) -> None:
        """Store the document, whatever was stored before."""
        self._store.save_document(self._kind, self._key, self._form.write(content))

    def remove(self) -> None:
        """Remove the document's content, so that ``load`` returns None."""
        self._store.save_document(self._kind, self._key, None)

    def swap(self, old: T | None, new: T) -> bool:
        """Replace the document atomically if its content still equals ``old`` (None: it does not exist).

        Returns True if replaced.
        """
        # The store compares what it has read from JSON, which has lists in place of tuples.
        before = None if old is None else json.loads(json.dumps(self._form.write(old)))
        return self._store.swap_document(self._kind, self._key, old=before, new=self._form.write(new))

    def change(self, change: Callable[[T | None], T], busy: TidesinkError) -> T:
        """Replace the content by ``change(content)``, even if other processes change it at the same time.

        ``change`` gets None if the document does not exist. It may run several times. Returns the new
        content. ``busy``: the error to raise if other processes keep changing the document.
        """
        for _ in range(_TRIES):
            document = self._store.load_document(self._kind, self._key)
            old = self._read(document)
            new = change(old)
            if new == old or self._store.swap_document(
                self._kind, self._key, old=document, new=self._form.write(new)
            ):
                return new
        raise busy

    def _read(self, document: Any | None) -> T | None:
        return None if document is None else self._form.read(document)
