"""Tools for tests: real servers with fresh databases, crash points, a faulty network.."""
