"""Slots: processes of one environment each, confined and forked from a warm parent, and the lines to them."""
