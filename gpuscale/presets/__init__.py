"""Preset files (TOML) and Hugging Face configs, read and checked with pydantic and turned into specs."""
