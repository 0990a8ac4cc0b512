"""The target for Delta tables. A batch's rows and the progress are written in one commit."""
