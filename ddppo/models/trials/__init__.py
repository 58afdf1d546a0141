"""Models of a user's own under test, before any process starts."""
