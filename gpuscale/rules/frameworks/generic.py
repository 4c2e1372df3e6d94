"""No framework in particular: what is physically possible and what the model can price."""

from __future__ import annotations

from gpuscale.rules.abilities import Abilities, RuleSet

RULE_SETS = {"generic": RuleSet("no framework in particular", "arithmetic alone", Abilities(), {})}
