"""CAGE challenge 2: a network of 13 hosts is defended against an attacker. Rules and choices: docs/cage2.md."""
