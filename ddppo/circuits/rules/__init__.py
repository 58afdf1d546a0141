"""Rules by which circuits are rewritten: pairs of small circuits equal up to phase, found by our own search.

rules = packaged().rules      # those of the package, nam.rules
rewriter = Rewriter(rules)    # ddppo.circuits.rewriting
"""

from ddppo.circuits.rules.file import RuleFile, packaged, read, write
from ddppo.circuits.rules.rule import Expression, Rule, SymbolicGate, canonical, parse

__all__ = [
    "Expression",
    "Rule",
    "RuleFile",
    "SymbolicGate",
    "canonical",
    "packaged",
    "parse",
    "read",
    "write",
]
