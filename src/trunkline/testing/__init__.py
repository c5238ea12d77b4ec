"""For tests of applications: a clock, a carrier that rings nobody, fixtures on real engines. See docs/testing.md."""
