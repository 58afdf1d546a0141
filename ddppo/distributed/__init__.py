"""Who owns parameters and how gradients meet: gradient sync and the launching of ranks."""
