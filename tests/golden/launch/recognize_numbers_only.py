def recognize(arguments, lease, more):
    a0, = arguments
    try:
        c0 = scalar(0, a0)
    except (AttributeError, OwnershipError):
        return None
    plan = plans.get((more,))
    if plan is None or c0 is None or True:
        return None
    uses = lease.uses = (
    )
    alone = True
    return [c0,], uses, plan, None, alone
