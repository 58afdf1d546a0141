"""Advice that is tried: short probes of a user's own configuration, and the settings that reach the target soonest."""
