"""The Java that the local broker and registry run on: the same one Spark gets."""

from __future__ import annotations

from tidesink.sinks.java import JavaRuntime, find_java, java_environment

__all__ = ["JavaRuntime", "find_java", "java_environment"]
