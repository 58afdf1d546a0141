"""The rules of model: what each kind reads, and what it needs of the rest."""
