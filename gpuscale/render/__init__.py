"""Drawing: Rich tables and plain text for people, JSON for tools. Nothing is computed here."""
