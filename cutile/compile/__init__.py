"""From a kernel and the facts of its arguments to something launchable: specialization, key, caches, dumps."""
