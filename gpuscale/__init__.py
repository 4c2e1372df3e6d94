"""gpuscale plans the parallelism of LLM training."""

from __future__ import annotations

__version__ = "0.1.0"
