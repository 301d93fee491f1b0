"""Products beside their peers, in pairs: `python -m kernels bench`.

A GPU at its power limit drifts by several percent within seconds, more than the differences of interest. So two
programs run in alternation, for equally long turns, after seconds of warming up. Each pair of turns gives one ratio,
and the result is the median of the ratios with its 95 % interval. The timed results are checked in the same run.
"""
