"""Order of the feasible candidates."""
