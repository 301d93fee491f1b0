def find(c, more):
    c0, c1, c2, c3, c4, = c
    plan = plans.get((c0.layout, c1.layout, c3.facts, more,))
    return None if plan is None or c0.grid != c1.grid or not c0.exact or not c1.exact else (plan, c0.grid)
