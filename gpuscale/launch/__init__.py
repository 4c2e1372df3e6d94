"""Launch files of training frameworks: read as a question, written from a plan."""
