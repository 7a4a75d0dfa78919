"""Test kits for whoever embeds or extends eaco: fakes with faults, seeded time, real toy jobs."""
