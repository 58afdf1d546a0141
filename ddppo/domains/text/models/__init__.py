"""Policies over tokens: a transformer of ours, or one of Hugging Face."""
