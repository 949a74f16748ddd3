"""Run hooks that record what agents do, with budgets and titles."""
