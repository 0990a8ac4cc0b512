"""The one configuration file of a pipeline: its models, and how it is read."""

from tidesink.config.fields import Problem
from tidesink.config.load import check_config, load_config, parse_config
from tidesink.config.models import (
    BatchSettings,
    Config,
    DeadLetterSettings,
    RetrySettings,
    SparkSettings,
    TableConfig,
    TableDefaults,
    TableOverride,
)
from tidesink.config.source import RegistryAuth, RegistrySettings, RegistryTls, SourceSettings
from tidesink.config.targets import (
    DeltaSettings,
    HttpSettings,
    IcebergSettings,
    KafkaSettings,
    TargetSettings,
)

__all__ = [
    "BatchSettings",
    "Config",
    "DeadLetterSettings",
    "DeltaSettings",
    "HttpSettings",
    "IcebergSettings",
    "KafkaSettings",
    "Problem",
    "RegistryAuth",
    "RegistrySettings",
    "RegistryTls",
    "RetrySettings",
    "SourceSettings",
    "SparkSettings",
    "TableConfig",
    "TableDefaults",
    "TableOverride",
    "TargetSettings",
    "check_config",
    "load_config",
    "parse_config",
]
