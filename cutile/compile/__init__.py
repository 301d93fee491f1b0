"""From a kernel and the facts of its arguments to something launchable.

Specialization, key, caches, dumps.
"""
