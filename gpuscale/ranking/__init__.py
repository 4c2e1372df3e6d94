"""Order of the feasible candidates."""

from gpuscale.ranking.evaluate import Evaluation, evaluate
from gpuscale.ranking.scored import Scored
from gpuscale.ranking.search import OBJECTIVES, OUT_OF_HOST_MEMORY, OUT_OF_MEMORY, SearchResult, score, search

__all__ = [
    "OBJECTIVES",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_MEMORY",
    "Evaluation",
    "Scored",
    "SearchResult",
    "evaluate",
    "score",
    "search",
]
