"""The config file of a pipeline: models of its sections, checks, and loading."""

from tidesink.config.fields import Problem
from tidesink.config.load import check_config, load_config, parse_config
from tidesink.config.models import Config, TableConfig
from tidesink.config.targets import HttpSettings, IcebergSettings, KafkaSettings, TargetSettings

__all__ = [
    "Config",
    "HttpSettings",
    "IcebergSettings",
    "KafkaSettings",
    "Problem",
    "TableConfig",
    "TargetSettings",
    "check_config",
    "load_config",
    "parse_config",
]
