"""Answer what people ask: one grammar, one order of steps, one receipt."""
