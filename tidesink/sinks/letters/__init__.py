"""Dead letters: their topic, and the tasks that write them and read them for a replay."""
