-- Lock attempts and, before them, their leads: migration 0035 says in which order, and how everything after it is planned.
SELECT attempts_lock($1)
