"""For tests of applications: a clock, a carrier that rings nobody, fixtures on real engines: docs/how-to/testing.md."""
