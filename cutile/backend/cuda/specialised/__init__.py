"""Products by specialised warps: the rules that find them, the record of what is found, and its lowering."""
