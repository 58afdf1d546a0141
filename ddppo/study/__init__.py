"""All that looks at runs from outside: reports, predictions, lists of runs, measured speed, and advice."""

from ddppo.plugins import Plugin

PLUGIN = Plugin(package=__name__)
