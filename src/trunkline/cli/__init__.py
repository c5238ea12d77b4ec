"""The command line: `trunkline …`."""
