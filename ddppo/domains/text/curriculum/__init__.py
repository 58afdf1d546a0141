"""Which task comes next in training: mastery of each, tiers, reviews (docs/curriculum.md)."""
