"""Schema registries: a client over HTTP, one in memory, and TiCDC's names of topics and subjects."""

from tidesink.schema_registry.base import (
    CompatibilityLevel,
    CompatibilityResult,
    RegisteredSchema,
    SchemaReader,
    SchemaRegistry,
    SchemaWriter,
)
from tidesink.schema_registry.client import (
    GlueSchemas,
    MemorySchemaRegistry,
    SchemaRegistryClient,
    open_registry,
)
from tidesink.schema_registry.compatibility import Incompatibility, incompatibilities
from tidesink.schema_registry.naming import (
    SubjectPart,
    TopicRule,
    sanitize_name,
    sanitize_namespace,
    subject,
)
from tidesink.schema_registry.transport import (
    Auth,
    BasicAuth,
    BearerAuth,
    NoAuth,
    RetryPolicy,
    Timeouts,
    TlsOptions,
)

__all__ = [
    "Auth",
    "BasicAuth",
    "BearerAuth",
    "CompatibilityLevel",
    "CompatibilityResult",
    "GlueSchemas",
    "Incompatibility",
    "MemorySchemaRegistry",
    "NoAuth",
    "RegisteredSchema",
    "RetryPolicy",
    "SchemaReader",
    "SchemaRegistry",
    "SchemaRegistryClient",
    "SchemaWriter",
    "SubjectPart",
    "Timeouts",
    "TlsOptions",
    "TopicRule",
    "incompatibilities",
    "open_registry",
    "sanitize_name",
    "sanitize_namespace",
    "subject",
]
