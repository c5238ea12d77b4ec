"""Ours and the peers' job queues, as programs of one shape that know nothing of each other.

`program setup|bulk|single|send|delay|drain|listen`, with a plan {"database_url", "redis_url", "count", "gap_s",
"due_s", "give_up_s"} on standard input. The last line of what it prints is JSON.

    setup    make the tables
    bulk     enqueue `count` no-op jobs in as few statements as it can    {"seconds"}
    single   enqueue them one after the other on one connection           {"seconds"}
    send     enqueue one every `gap_s`, with the moment before the call   {}
    delay    enqueue one for each moment of `due_s`                       {}
    drain    run what waits; from the first job's beginning to the last's {"seconds"}
    listen   say "ready", then run `count` jobs as they come; how late each began after its moment {"late_ms"}
"""
