"""How ranks meet and share the work: joining, the sum of gradients, and a file for each topology."""
