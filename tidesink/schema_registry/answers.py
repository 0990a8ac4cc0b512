"""What a registry's HTTP answer means.

Confluent's error codes (Schema Registry API v1), which Apicurio's ccompat v7 gives too: 40401 subject,
40402 version, 40403 schema not found; 409 incompatible; 422xx a request that makes no sense. An answer of
another shape is a sign that something else listens at the URL.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tidesink.errors import ContextValue, RegistryError, SchemaNotFoundError
from tidesink.schema_registry.transport import Answer

NOT_FOUND_CODES = frozenset({40401, 40402, 40403})

T = TypeVar("T")

_SIGN_IN = {
    401: "it wants credentials, or other ones: check the registry's username and password or its token",
    403: "these credentials may not do this: give their owner the right, or use others",
}


def error_code(answer: Answer) -> int | None:
    """The registry's own code of an error, or None where it is not a registry's error."""
    code = answer.body.get("error_code") if isinstance(answer.body, dict) else None
    return code if isinstance(code, int) else None


def is_not_found(answer: Answer) -> bool:
    """Whether a registry says that it does not hold what was asked for."""
    return answer.status == 404 and error_code(answer) in NOT_FOUND_CODES


def expect(answer: Answer, kind: type[T], **context: ContextValue) -> T:
    """The body of a good answer; raises the error that any other answer stands for."""
    if answer.status // 100 != 2:
        raise refusal(answer, **context)
    if not isinstance(answer.body, kind):
        raise not_a_registry(answer)
    return answer.body


def member(answer: Answer, name: str, kind: type[T]) -> T:
    """One member of an answer's object; raises RegistryError where it is missing or of another type."""
    body: dict[str, Any] = expect(answer, dict)
    value = body.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise not_a_registry(answer)
    return value


def refusal(answer: Answer, **context: ContextValue) -> RegistryError:
    """The error for an answer that is neither good nor worth another try."""
    code = error_code(answer)
    if answer.status in _SIGN_IN:
        return RegistryError(
            f"the schema registry answers HTTP {answer.status}: {_SIGN_IN[answer.status]}",
            url=answer.url,
            **context,
        )
    if is_not_found(answer):
        return SchemaNotFoundError(f"not found: {said(answer)}", url=answer.url, **context)
    # Confluent answers an unknown path with the code 404: a registry, but not at this path.
    if code is None or code == 404:
        return not_a_registry(answer)
    return RegistryError(
        f"the schema registry refuses (HTTP {answer.status}, code {code}): {said(answer)}",
        url=answer.url,
        **context,
    )


def not_a_registry(answer: Answer) -> RegistryError:
    """The error for an answer which no schema registry gives."""
    shown = f": {answer.excerpt}" if answer.excerpt else ", nothing in it"
    return RegistryError(
        f"is this URL a schema registry? It answers HTTP {answer.status}{shown} "
        "(the URL may need a path, as Apicurio's /apis/ccompat/v7)",
        url=answer.url,
    )


def said(answer: Answer) -> str:
    """The registry's own words, on one line, as far as they are fit to be shown."""
    message = answer.body.get("message") if isinstance(answer.body, dict) else None
    return answer.fit(message) if isinstance(message, str) and message else answer.excerpt
