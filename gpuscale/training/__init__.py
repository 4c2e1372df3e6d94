"""A whole training: when it is done, what it costs, draws and emits."""
