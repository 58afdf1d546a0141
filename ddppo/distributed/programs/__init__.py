"""What ranks of each topology run: who acts, who learns, and how that comes from one to the other."""
