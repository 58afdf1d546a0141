"""Trained policies outside training. Read acting, loading, playing (with pictures), scores, export, in this order."""
