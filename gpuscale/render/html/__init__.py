"""Pages of one file: an answer with charts, for a browser, a phone, paper and a screen reader; no network needed."""
