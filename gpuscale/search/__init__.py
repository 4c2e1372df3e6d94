"""Order of the feasible candidates."""

from gpuscale.search.evaluate import Evaluation, evaluate, evaluate_each
from gpuscale.search.scored import Scored
from gpuscale.search.search import OBJECTIVES, SearchResult, score, search
from gpuscale.search.tally import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY

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
