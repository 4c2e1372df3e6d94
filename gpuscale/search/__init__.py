"""Order of the feasible candidates."""

from gpuscale.search.accumulator import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY
from gpuscale.search.evaluation import Evaluation, evaluate, evaluate_each
from gpuscale.search.loop import OBJECTIVES, SearchResult, score, search
from gpuscale.search.ordering import Scored

__all__ = [
    "OBJECTIVES",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_MEMORY",
    "Evaluation",
    "Scored",
    "SearchResult",
    "evaluate",
    "evaluate_each",
    "score",
    "search",
]
