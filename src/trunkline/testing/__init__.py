"""For tests of applications: a clock, a fake carrier, fixtures on real engines. See docs/how-to/testing.md."""
