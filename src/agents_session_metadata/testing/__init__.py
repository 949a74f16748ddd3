"""A conformance kit for sessions of the Agents SDK (extra `testing`).

`pytest --session=package.module:factory` runs the tests of the module `contract` on the sessions
that `factory` returns, whatever their class is.
"""
