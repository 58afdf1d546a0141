"""How ranks share the work: a file or folder for each topology, and what they have in common."""
