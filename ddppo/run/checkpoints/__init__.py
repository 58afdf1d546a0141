"""What a checkpoint holds besides what was learned, who writes it, and what a run may begin with."""
