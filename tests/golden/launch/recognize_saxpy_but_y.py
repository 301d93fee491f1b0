def recognize(arguments, lease, more):
    a0, a1, a2, = arguments
    try:
        c1 = a1 if type(a1) is float and -65504.0 <= a1 <= 65504.0 else scalar(1, a1)
        c2 = a2.__kernel_input__()
    except (AttributeError, OwnershipError):
        return None
    if (c2.layout,) not in seen or c1 is None:
        return None
    s2 = c2.storage
    uses = lease.uses = (
        ('x', s2, False, c2.start, c2.stop),
    )
    l2 = s2.leases; l2.append(lease)
    alone = len(l2) == 1
    return [None, c1, c2,], uses, None, None, None if alone else False
