"""What passes and targets ask about a program: ranges, affine integers, preconditions, order. Changes no IR."""
