"""From tidy tables of runs and checkpoints to the numbers that figures and claims read.

The functions stand in :mod:`~effstate.analysis.tables` (ratios, selections),
:mod:`~effstate.analysis.correlation` and :mod:`~effstate.analysis.buckets` (marginals);
:mod:`~effstate.analysis.names` holds the vocabulary and imports nothing, so that reading the figure
registry stays free of pandas.
"""
