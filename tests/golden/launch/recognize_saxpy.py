def recognize(arguments, lease, more):
    a0, a1, a2, = arguments
    try:
        c0 = a0.__kernel_output__()
        c1 = a1 if type(a1) is float and -65504.0 <= a1 <= 65504.0 else scalar(1, a1)
        c2 = a2.__kernel_input__()
    except (AttributeError, OwnershipError):
        return None
    plan = plans.get((c0.layout, c2.layout, more,))
    if plan is None or c1 is None or not c0.exact:
        return None
    s0 = c0.storage
    s2 = c2.storage
    uses = lease.uses = (
        ('y', s0, True, c0.start, c0.stop),
        ('x', s2, False, c2.start, c2.stop),
    )
    l0 = s0.leases; l0.append(lease)
    l2 = s2.leases; l2.append(lease)
    alone = len(l0) == len(l2) == 1
    return [c0, c1, c2,], uses, plan, c0.grid, alone
