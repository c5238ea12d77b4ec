"""The parts of a process, in the order of a call's life. Each builds what belongs together; `app` lets them run."""
