"""Slots: confined processes of one environment each, forked from a warm parent.

pool.py lends slots to sessions, worlds.py starts and ends their processes, backend.py and world.py run in such a
process, line.py and wire.py are both ends of the socket between server and process.
"""
