"""Commands that study finished runs, and measure and predict speed: report, predict, runs, bench and advise.

A report runs through the folders in this order: read (files become runs and studies), measure (speedup over workers),
explain (the causes of lost time), predict (a model of the time of an iteration), page (the files of the report).
"""

from ddppo.plugins import Plugin

PLUGIN = Plugin(package=__name__)
