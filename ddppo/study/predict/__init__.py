"""Predict FPS at W without a run, with intervals, and recommend a W.

Read points (measured means), collective_cost and parameters (the model of an iteration), fitting, intervals, model (the
fitted model), usl (a simpler law), recommend, outlook (all of it for a report) and command, in this order.
"""
