def enqueue(c, uses, g, stream):
    blocks = g[0] * g[1] * g[2]
    if len(uses) != 2 or blocks > most:
        return general(c, uses, g, stream)
    verify(c, g)
    c0, c1, c2, = c
    s0 = c0.storage
    s2 = c2.storage
    if s0.device is not device or s2.device is not device:
        check_devices(name, uses, device)
    s0.order(stream, True)
    s2.order(stream, False)
    try: memory, where = local.memory
    except AttributeError: memory, where = local.memory = make_memory()
    pack(memory, 0, c0.address, c0.shape[0], c1, c2.address, c2.shape[0], g[0], g[1], g[2])
    launch(stream.driver, blocks, where)
    stream.sequence += 1
    if key not in stream.held:
        stream.hold(code)
