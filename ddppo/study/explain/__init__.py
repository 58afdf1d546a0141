"""Explain a study: causes of lost time (accounting), the verdict (criteria), and texts (sentences, topologies)."""
