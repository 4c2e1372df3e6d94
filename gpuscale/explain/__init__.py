"""Answers to questions about an answer: where time and memory go, what bounds them, what would change them."""
