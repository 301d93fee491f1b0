def recognize(arguments, lease):
    a0, = arguments
    try:
        c0 = scalar(0, a0)
    except (AttributeError, OwnershipError):
        return None
    plan = plans.get(())
    if plan is None or c0 is None or True:
        return None
    uses = lease.uses = (
    )
    alone = 1
    return [c0,], uses, plan, None, alone
