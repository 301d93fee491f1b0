def recognize(arguments, lease, more):
    a0, a1, a2, a3, a4, = arguments
    try:
        c0 = a0.__kernel_output__()
        c1 = a1.__kernel_output__()
        c2 = scalar(2, a2)
        c3 = a3.__kernel_input__()
        c4 = a4 if type(a4) is float else scalar(4, a4)
    except (AttributeError, OwnershipError):
        return None
    plan = plans.get((c0.layout, c1.layout, c3.facts, more,))
    if plan is None or c2 is None or c4 is None or c0.grid != c1.grid or not c0.exact or not c1.exact:
        return None
    s0 = c0.storage
    s1 = c1.storage
    s3 = c3.storage
    uses = lease.uses = (
        ('y', s0, True, c0.start, c0.stop),
        ('z', s1, True, c1.start, c1.stop),
        ('x', s3, False, c3.start, c3.stop),
    )
    l0 = s0.leases; l0.append(lease)
    l1 = s1.leases; l1.append(lease)
    l3 = s3.leases; l3.append(lease)
    alone = len(l0) == len(l1) == len(l3) == 1
    return [c0, c1, c2, c3, c4,], uses, plan, c0.grid, alone
