"""The tests on every supported release of what the package builds on."""
