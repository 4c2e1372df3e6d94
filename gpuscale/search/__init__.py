"""The search: which layouts fit, and which of them are best."""

from gpuscale.search.evaluation import Evaluation, evaluate
from gpuscale.search.loop import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY, SearchResult, score, search, search_best
from gpuscale.search.ordering import Scored

__all__ = [
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_MEMORY",
    "Evaluation",
    "Scored",
    "SearchResult",
    "evaluate",
    "score",
    "search",
    "search_best",
]
