"""Rules by which circuits are rewritten: pairs of small circuits equal up to phase, found by our own search.

rules = packaged().rules      # those of the package, nam.rules
rewriter = Rewriter(rules)    # ddppo.domains.circuits.quantum.rewriting
"""

from ddppo.domains.circuits.quantum.rules.file import RuleFile, packaged, read, write
from ddppo.domains.circuits.quantum.rules.rule import Expression, Rule, SymbolicGate, canonical, parse

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
