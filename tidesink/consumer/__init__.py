"""Reading a changefeed's topics in plain Python: typed events, at least once."""

from tidesink.consumer.consume import BadRecord, EventBatch, EventConsumer, consume

__all__ = ["BadRecord", "EventBatch", "EventConsumer", "consume"]
