"""effstate: the effective state-size of causal sequence mixers.

The metric alone is in :mod:`effstate.ess`, which imports nothing else of this package.
"""

__version__ = "0.1.0"
