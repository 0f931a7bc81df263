"""Things to move by hand; each has a static twin, so that a stored notebook reads well without a kernel."""
