"""The old name of ``tidesink.sinks.spark.session``, for one release."""

from tidesink.sinks.spark.session import build_session

__all__ = ["build_session"]
