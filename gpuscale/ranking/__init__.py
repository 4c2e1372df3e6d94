"""Order of the feasible candidates."""

from gpuscale.ranking.evaluate import Evaluation, evaluate, evaluate_each
from gpuscale.ranking.scored import Scored
from gpuscale.ranking.search import OBJECTIVES, SearchResult, score, search
from gpuscale.ranking.tally import OUT_OF_HOST_MEMORY, OUT_OF_MEMORY

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
