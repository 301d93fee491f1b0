"""Products beside their peers, in pairs: `python -m kernels bench`.

A GPU at its power limit drifts by several percent within seconds, more than what is to be told apart. So two programs
are run in turn, A B A B, each for as long as the other, after seconds of warming; each pair gives one ratio, and the
result is the median of the ratios with its 95 % interval. What was timed is checked in the same run.
"""
